"""`trajformer plot --animate` without an encoder, and `export-mcap`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli import run
from support.scenes import make_scene

from trajformer.plotting import video
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two short scenes."""
    scenes = []
    for number in range(2):
        name = f"s{number}"
        scenes.append(make_scene(4, num_history=3, num_future=3, num_scored=1, scene_id=name))
    folder = tmp_path / "store"
    write_shard(shard_path(folder, "val", 0), scenes, ShardInfo(source="test", split="val"))
    write_manifest(folder)
    return folder


def test_without_an_encoder_a_gif_is_written_and_one_line_says_so(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(video, "has_encoder", lambda suffix: suffix == "gif")
    words = ("plot", store, "--scene", "s0", "--animate", "--out", tmp_path / "a.mp4")
    assert run(*words) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [str(tmp_path / "a.gif")]
    first, *_ = printed.err.splitlines()
    assert first.startswith("trajformer plot: no encoder for mp4, so GIF is written")
    assert (tmp_path / "a.gif").read_bytes().startswith(b"GIF89a")
    assert run(*words) == 1
    assert run(*words, "--overwrite") == 0


def test_one_animation_shows_one_scene(
    store: Path, tmp_path: Path, fails: Callable[..., str]
) -> None:
    words = ("plot", store, "--animate", "--out", tmp_path / "a.gif")
    assert "one animation shows one scene, but 2 were chosen" in fails(*words)


def test_unknown_agents_are_named(store: Path, tmp_path: Path, fails: Callable[..., str]) -> None:
    words = ("plot", store, "--scene", "s0", "--out", tmp_path / "p", "--agents")
    assert "no agent '404' in scene 's0'" in fails(*words, "404")
    assert "no agent '404' in the given scenes" in fails(*words, "1000", "404")


def test_a_store_is_exported_for_foxglove(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcap")
    out = tmp_path / "a.mcap"
    assert run("export-mcap", store, "--out", out) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 2 scenes, ")
    assert run("export-mcap", store, "--out", out, "--overwrite") == 0
