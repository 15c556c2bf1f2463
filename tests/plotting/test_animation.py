"""Animations: positions between steps, frames, and files that other programs read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.pictures import fans
from support.scenes import make_scene

from trajformer.errors import TrajformerError
from trajformer.plotting import video
from trajformer.plotting.animation import frame_times, poses_at, predicted_at
from trajformer.plotting.scene import Content, PictureOptions
from trajformer.scenes.scene import Scene

OPTIONS = PictureOptions()


def short() -> Scene:
    """A scene of 0.8 s."""
    return make_scene(num_agents=5, num_history=4, num_future=4, num_scored=1)


def test_an_animation_has_8_s_if_the_history_is_long_enough() -> None:
    long = make_scene(num_history=50, num_future=60)
    assert frame_times(long)[[0, -1]] == pytest.approx([-2.0, 6.0])
    assert frame_times(short())[[0, -1]] == pytest.approx([-0.3, 0.4])
    slow = replace(make_scene(num_history=4, num_future=12), period_s=0.5)
    assert frame_times(slow)[[0, -1]] == pytest.approx([-1.5, 6.0])


def test_poses_between_steps_are_interpolated_and_turn_the_short_way() -> None:
    scene = short()
    now = scene.num_history - 1
    scene.position[0, now : now + 2] = [(0.0, 0.0), (2.0, 4.0)]
    scene.heading[0, now : now + 2] = [3.0, -3.0]
    scene.valid[0] = True
    scene.valid[1, now + 1] = False
    poses, visible = poses_at(scene, 0.5 * scene.period_s)
    assert poses[0, :2] == pytest.approx([1.0, 2.0])
    assert np.cos(poses[0, 2]) == pytest.approx(-1.0, abs=1e-3)
    assert visible[0]
    assert not visible[1]
    poses, visible = poses_at(scene, 0.0)
    np.testing.assert_allclose(poses[:, :2], scene.position[:, now])


def test_modes_begin_at_the_present_and_end_at_the_horizon() -> None:
    scene = short()
    position = fans(scene)[0].position - scene.origin
    start = predicted_at(scene, 0, position, 0.0)
    np.testing.assert_allclose(start, np.tile(scene.position[0, scene.num_history - 1], (6, 1)))
    np.testing.assert_allclose(predicted_at(scene, 0, position, 0.4), position[:, -1])
    between = predicted_at(scene, 0, position, 0.25)
    np.testing.assert_allclose(between, position[:, 1:3].mean(1))


def test_a_gif_moves_loops_and_is_repeatable(tmp_path: Path) -> None:
    scene = short()
    content = Content(scene, fans(scene), OPTIONS)
    contents = []
    for name in ("a.gif", "b.gif"):
        video.save_animation(content, tmp_path / name, OPTIONS)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    with Image.open(tmp_path / "a.gif") as image:
        assert getattr(image, "n_frames", 1) == len(frame_times(scene))
        assert image.info["loop"] == 0
        frames = []
        for number in (0, len(frame_times(scene)) - 1):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB")))
    assert (frames[0] != frames[1]).any(-1).sum() > 500
    (tmp_path / "a.gif").write_bytes(b"GIF89a of another program")
    with pytest.raises(TrajformerError, match="no picture of trajformer"):
        video.save_animation(content, tmp_path / "a.gif", OPTIONS)


def test_a_scene_without_a_future_or_forecasts_is_animated(tmp_path: Path) -> None:
    scene = make_scene(num_history=3, num_future=2, with_future=False, with_map=False)
    video.save_animation(Content(scene, (), OPTIONS), tmp_path / "a.gif", OPTIONS)
    assert (tmp_path / "a.gif").stat().st_size > 1000


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_videos_are_read_by_their_decoder(tmp_path: Path, suffix: str) -> None:
    av = pytest.importorskip("av")
    if not video.has_encoder(suffix):
        pytest.skip(f"no encoder for {suffix}")
    scene = short()
    path = tmp_path / f"a.{suffix}"
    content = Content(scene, fans(scene), OPTIONS)
    for _ in range(2):  # the second one replaces the first one
        video.save_animation(content, path, OPTIONS)
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == len(frame_times(scene))
    assert (np.abs(frames[0].astype(int) - frames[-1]).max(-1) > 60).sum() > 200
