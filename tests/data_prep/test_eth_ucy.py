"""The ETH/UCY reader: windows and roles, causal motion estimates, and the counts of the real recordings."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.recordings import CORNER, PERIOD_S, F, H, T, Walk, crowd, lines, straight
from support.recordings import write_recording as write
from support.scenes import agent, assert_same_history, assert_same_steps, with_role

from data_prep.reader import Input
from data_prep.readers.eth_ucy import EthUcy
from trajformer.scenes.scene import AgentKind, AgentRole, Scene


def listed(raw: Path, split: str = "eth_test", reader: EthUcy | None = None) -> list[str]:
    return [item.part for item in (reader or EthUcy()).inputs(raw, split)]


def read(raw: Path, walks: list[Walk], **options: int) -> Scene:
    """Write the people as the one recording of a set and read its first window."""
    path = write(raw / "eth" / "biwi_eth.txt", walks, **options)
    return EthUcy().read(Input(path, str(options.get("first", 780))), "eth_test", raw).validate()


def test_a_window_becomes_a_scene(tmp_path: Path) -> None:
    scene = read(tmp_path, crowd())
    assert (scene.scene_id, scene.source, scene.split, scene.city) == (
        "biwi_eth-780",
        "eth_ucy",
        "eth_test",
        "biwi_eth",
    )
    assert (scene.num_history, scene.num_future, scene.num_steps, scene.period_s) == (
        H,
        F,
        T,
        PERIOD_S,
    )
    assert (scene.agent_kind == AgentKind.PEDESTRIAN).all()
    assert scene.num_polylines == 0
    assert scene.agent_id == (
        "1.0",
        "3.0",
        "4.0",
        "5.0",
        "6.0",
        "7.0",
        "20.0",
    )  # by number; "8.0" is not observed
    scored, context = AgentRole.SCORED, AgentRole.CONTEXT  # complete tracks are scored
    assert scene.agent_role.tolist() == [scored, scored, scored, context, context, context, scored]
    for walk in crowd()[:-1]:
        index, span = agent(scene, walk.name), slice(walk.start, walk.start + len(walk.positions))
        assert scene.valid[index].sum() == len(walk.positions)
        assert scene.valid[index, span].all()
        assert np.abs(scene.position[index, span] + scene.origin - walk.positions).max() < 1e-5
    now = [
        w.positions[H - 1 - w.start] for w in crowd() if w.start < H <= w.start + len(w.positions)
    ]
    assert len(now) == 6
    assert np.abs(scene.origin - np.mean(now, 0)).max() < 1e-9


@pytest.mark.parametrize(("interval", "first"), [(1, 78), (6, 0), (10, -30)])
def test_the_interval_is_estimated_per_file(tmp_path: Path, interval: int, first: int) -> None:
    walks = [
        Walk("1.0", straight(22, (0, 0), (1.0, 0))),
        Walk("2.0", straight(5, (3, 0), (1.0, 0)), start=1),
    ]
    write(tmp_path / "eth" / "a.txt", walks, interval=interval, first=first)
    assert listed(tmp_path) == [str(first + step * interval) for step in range(3)]
    scene = EthUcy().read(EthUcy().inputs(tmp_path, "eth_test")[2], "eth_test", tmp_path)
    assert scene.valid[0].all()
    assert scene.valid[1].tolist() == [True] * 4 + [False] * 16
    assert np.abs(scene.velocity[0] - (1.0, 0.0)).max() < 1e-6


def test_windows_do_not_span_gaps(tmp_path: Path) -> None:
    before, after = straight(24, (0, 0), (1.0, 0)), straight(21, (30, 0), (1.0, 0))
    path = tmp_path / "eth" / "a.txt"
    write(
        path, [*lines([Walk("1.0", before)]), *lines([Walk("1.0", after, start=26)], first=783)]
    )  # the grid moves, too
    assert listed(tmp_path) == ["780", "790", "800", "810", "820", "1043", "1053"]
    write(
        path,
        [
            row
            for row in lines([Walk("1.0", straight(30, (0, 0), (1.0, 0)))])
            if not row.startswith("880.0 ")
        ],
    )
    assert EthUcy().inputs(tmp_path, "eth_test") == [Input(path)]  # 10 and 19 frames
    rows = lines([Walk("1.0", straight(22, (0, 0), (1.0, 0)))])
    write(path, [*rows, rows[9].replace("870.0", "853.0")])  # a row off the grid removes no window
    assert listed(tmp_path) == ["780", "790", "800"]
    assert np.allclose(
        EthUcy().read(Input(path, "780"), "eth_test", tmp_path).validate().velocity,
        (1.0, 0.0),
        atol=1e-5,
    )


def test_windows_do_not_cross_files(tmp_path: Path) -> None:
    for name, steps, start in (
        ("students001", 19, 2),
        ("students003", 21, 21),
        ("students004", 20, 21),
    ):
        write(
            tmp_path / "univ" / f"{name}.txt",
            [Walk("1.0", straight(steps, (0, 0), (1.0, 0)), start=start)],
        )
    short, *items = EthUcy().inputs(tmp_path, "univ_test")
    assert (short.path.stem, short.part) == ("students001", "")
    scenes = [EthUcy().read(item, "univ_test", tmp_path) for item in items]
    assert [scene.scene_id for scene in scenes] == [
        "students003-990",
        "students003-1000",
        "students004-990",
    ]
    assert [scene.city for scene in scenes] == ["students003", "students003", "students004"]


def test_splits_are_sets_and_parts(tmp_path: Path) -> None:
    for name in (
        "eth/biwi_eth",
        "eth/biwi_hotel_train",
        "eth/biwi_hotel_val",
        "my_set/a_train",
        "my_set/b_train",
    ):
        write(tmp_path / f"{name}.txt", crowd())
    (tmp_path / "empty").mkdir()
    for name in ("readme.txt", "eth/._biwi_eth.txt", "eth/notes.md"):
        (tmp_path / name).touch()
    assert EthUcy().splits(tmp_path) == ["eth_test", "eth_train", "eth_val", "my_set_train"]
    assert [item.path.name for item in EthUcy().inputs(tmp_path, "my_set_train")] == [
        "a_train.txt",
        "b_train.txt",
    ]
    assert [item.path.name for item in EthUcy().inputs(tmp_path, "eth_test")] == ["biwi_eth.txt"]
    [item] = EthUcy().inputs(tmp_path, "eth_val")
    assert EthUcy().read(item, "eth_val", tmp_path).scene_id == "biwi_hotel-780"


def test_stride_and_lengths_are_options(tmp_path: Path) -> None:
    write(tmp_path / "eth" / "a.txt", [Walk("1.0", straight(26, (0, 0), (1.0, 0)))])
    assert listed(tmp_path, reader=EthUcy(stride=3)) == ["780", "810", "840"]
    short = EthUcy(num_history=4, num_future=3)
    assert len(listed(tmp_path, reader=short)) == 20
    scene = short.read(short.inputs(tmp_path, "eth_test")[19], "eth_test", tmp_path).validate()
    assert (scene.scene_id, scene.num_history, scene.num_future, scene.num_steps) == (
        "a-970",
        4,
        3,
        7,
    )


def test_velocity_is_the_last_displacement_and_the_first_step_shares_it(tmp_path: Path) -> None:
    scene = read(tmp_path, crowd())
    for walk in crowd()[:6]:
        index, span = agent(scene, walk.name), slice(walk.start, walk.start + len(walk.positions))
        expected = np.diff(walk.positions, axis=0) / PERIOD_S
        expected = np.concatenate([expected[:1], expected])
        assert np.abs(scene.velocity[index, span] - expected).max() < 1e-5, walk.name
        assert not scene.velocity[index][~scene.valid[index]].any()
        if walk.name != "20.0":  # does not move
            heading = np.arctan2(expected[:, 1], expected[:, 0])
            assert np.abs(np.sin(scene.heading[index, span] - heading)).max() < 1e-5, walk.name
    index = agent(scene, "7.0")  # one observed frame: the second one is in the future
    assert (
        scene.valid[index, H - 1]
        and not scene.velocity[index, H - 1].any()
        and scene.heading[index, H - 1] == 0.0
    )
    assert np.allclose(scene.velocity[index, H:], -1.0, atol=1e-5)


def test_velocity_accounts_for_missing_frames(tmp_path: Path) -> None:
    rows = lines([*crowd(), Walk("9.0", straight(T, (3.0, 3.0), (0.0, -1.5)))])
    gone = {f"{780.0 + 10 * step} 9.0 " for step in (3, 4, 5)}
    write(
        tmp_path / "eth" / "a.txt",
        [row for row in rows if not any(row.startswith(start) for start in gone)],
    )
    scene = EthUcy().read(Input(tmp_path / "eth" / "a.txt", "780"), "eth_test", tmp_path).validate()
    index = agent(scene, "9.0")
    assert scene.agent_role[index] == AgentRole.CONTEXT
    assert np.flatnonzero(~scene.valid[index]).tolist() == [3, 4, 5]
    assert np.allclose(scene.velocity[index][scene.valid[index]], (0.0, -1.5), atol=1e-5)


def test_standing_agents_have_no_heading_and_stopping_ones_keep_theirs(tmp_path: Path) -> None:
    jitter = 0.05 * np.random.default_rng(0).uniform(-1, 1, (T, 2))
    stops = (
        straight(T, (0.0, 0.0), (0.0, 0.0))
        + np.minimum(np.arange(T), 4)[:, None] * (-0.3, 0.3)
        + jitter
    )
    turns = straight(T, (5.0, 5.0), (1.0, 0.0))
    turns[4:] = turns[3] + np.arange(1, T - 3)[:, None] * (0.0, 0.4)
    walks = [
        Walk("1.0", straight(T, (3, 3), (0, 0)) + jitter),
        Walk("2.0", stops),
        Walk("3.0", turns),
    ]
    scene = read(tmp_path, walks)
    assert not scene.heading[0].any()
    assert np.abs(scene.heading[1] - 0.75 * np.pi).max() < 0.35
    assert np.abs(scene.heading[2, :4]).max() < 1e-5
    assert np.abs(scene.heading[2, 4:] - np.pi / 2).max() < 1e-5  # at once, not after some steps


def test_training_windows_at_a_higher_tempo(tmp_path: Path) -> None:
    angle = 0.1 * np.arange(42)
    bend = CORNER + 5 * np.stack([np.cos(angle), np.sin(angle)], -1)
    other = straight(30, (0, 0), (1.0, 0.5))
    rows = [
        row
        for row in lines([Walk("1.0", bend), Walk("2.0", other)])
        if not row.startswith("830.0 2.0 ")
    ]  # frame 5
    for part in ("train", "val"):
        write(tmp_path / "eth" / f"a_{part}.txt", rows)
    write(
        tmp_path / "eth" / "b_train.txt", [Walk("1.0", straight(20, (0, 0), (1.0, 0)))]
    )  # too short for other tempos
    reader, plain = EthUcy(tempo=2), [str(780 + 10 * start) for start in range(23)]
    assert listed(tmp_path, "eth_val", reader) == plain
    assert listed(tmp_path, "eth_train") == [*plain, "780"]
    assert listed(tmp_path, "eth_train", reader) == [*plain, "780x2.0", "800x2.0", "780"]
    assert listed(tmp_path, "eth_train", EthUcy(tempo=1.5)) == [
        *plain,
        *(f"{first}x1.5" for first in plain[:13:2]),
        "780",
    ]
    assert listed(tmp_path, "eth_train", EthUcy(tempo=2, stride=2)) == [
        *plain[::2],
        "780x2.0",
        "780",
    ]
    for start, tempo in [(0, 2.0), (3, 2.0), (0, 1.5), (12, 1.5)]:
        item = Input(tmp_path / "eth" / "a_train.txt", f"{780 + 10 * start}x{tempo}")
        scene = reader.read(item, "eth_train", tmp_path).validate()
        assert (scene.scene_id, scene.period_s, scene.num_steps) == (f"a-{item.part}", PERIOD_S, T)
        time, index = start + tempo * np.arange(T), agent(scene, "1.0")
        expected = np.stack([np.interp(time, np.arange(42), bend[:, axis]) for axis in (0, 1)], -1)
        assert scene.valid[index].all() and scene.agent_role[index] == AgentRole.SCORED
        assert np.abs(scene.position[index] + scene.origin - expected).max() < 1e-5
        assert np.abs(scene.velocity[index, 1:] - np.diff(expected, axis=0) / PERIOD_S).max() < 1e-4
        seen = np.isin(np.floor(time), [*range(5), *range(6, 30)]) & np.isin(
            np.ceil(time), [*range(5), *range(6, 30)]
        )
        assert np.array_equal(scene.valid[agent(scene, "2.0")], seen)
        assert scene.agent_role[agent(scene, "2.0")] == AgentRole.CONTEXT


@pytest.mark.parametrize("ends", [False, True])
def test_the_future_changes_roles_only(tmp_path: Path, ends: bool) -> None:
    scene, walks, generator = read(tmp_path, crowd()), crowd(), np.random.default_rng(2)
    for walk in walks:
        future = walk.positions[max(0, H - walk.start) :]
        future[:] = CORNER + generator.normal(0, 20, future.shape)
        if ends and walk.name != "3.0":
            walk.positions = walk.positions[: max(1, H - walk.start)]
    changed = read(tmp_path, walks)
    assert_same_history(scene, changed, roles=False)
    assert not np.allclose(scene.velocity[:, H:], changed.velocity[:, H:])
    scored = {"3.0"} if ends else {"1.0", "3.0", "4.0", "20.0"}
    assert with_role(changed, AgentRole.SCORED) == scored


@pytest.mark.parametrize("last", [1, 6, 12])
def test_every_step_depends_on_earlier_steps_only(tmp_path: Path, last: int) -> None:
    scene, walks, generator = read(tmp_path, crowd()), crowd(), np.random.default_rng(3)
    walks = [
        walk for walk in walks if walk.start <= last - 1 or walk.start >= H - 1
    ]  # a first step uses the second one
    for walk in walks:
        later = walk.positions[max(0, last + 1 - walk.start) :]
        later += generator.normal(0, 5, later.shape)
    changed = read(tmp_path, walks)
    for walk in walks:
        if walk.name != "8.0":
            assert_same_steps(scene, changed, walk.name, last + 1, 1e-5)


def test_real_windows_equal_the_protocol(real_data: Path) -> None:
    reader, raw = EthUcy(), real_data / "eth_ucy"
    inputs = {split: reader.inputs(raw, split) for split in reader.splits(raw)}
    assert {split: len(items) for split, items in inputs.items()} == reader.published
    assert all(item.part for items in inputs.values() for item in items)


@pytest.mark.parametrize("split", ["eth_test", "hotel_train"])
def test_real_rows_are_kept(real_data: Path, split: str) -> None:
    reader, raw = EthUcy(), real_data / "eth_ucy"
    rows: dict[Path, dict[int, dict[str, tuple[float, float]]]] = {}
    for item in reader.inputs(raw, split)[::29]:
        if item.path not in rows:
            rows[item.path] = defaultdict(dict)
            for line in item.path.read_text().splitlines():
                words = line.split(" ")
                rows[item.path][int(float(words[0]))][words[1]] = float(words[13]), float(words[15])
        frames = [rows[item.path][int(item.part) + step] for step in range(T)]
        seen = set().union(*frames[:H])
        scene = reader.read(item, split, raw)
        assert set(scene.agent_id) == seen
        assert scene.valid.sum() == sum(len(seen & set(frame)) for frame in frames)
        for step, frame in enumerate(frames):
            for name in seen & set(frame):
                index = agent(scene, name)
                assert scene.valid[index, step]
                assert np.abs(scene.position[index, step] + scene.origin - frame[name]).max() < 1e-5
        scored = {name for name in seen if all(name in frame for frame in frames)}
        assert {
            scene.agent_id[i] for i in np.flatnonzero(scene.agent_role == AgentRole.SCORED)
        } == scored
