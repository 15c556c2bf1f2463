"""The ETH/UCY reader: windows, roles, causal motion estimates, counts of the real recordings."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.recordings import CORNER, PERIOD_S, F, H, T, Walk, crowd, lines, straight
from support.recordings import write_recording as write
from support.scenes import (
    agent,
    assert_near,
    assert_same_history,
    assert_same_steps,
    in_city,
    with_role,
)

from data_prep.reader import Input
from data_prep.readers.eth_ucy import EthUcy
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.geometry import GRID_M
from trajformer.scenes.scene import AgentKind, AgentRole, Scene


def listed(raw: Path, split: str = "eth_test", reader: EthUcy | None = None) -> list[str]:
    return [item.part for item in (reader or EthUcy()).inputs(raw, split)]


def walk(name: str, steps: int, start: int = 0) -> Walk:
    """A pedestrian that walks in x direction at 1 m/s."""
    return Walk(name, straight(steps, (0, 0), (1.0, 0)), start=start)


def read(raw: Path, walks: list[Walk], **options: int) -> Scene:
    """Write the people as the one recording of a set and read its first window."""
    path = write(raw / "eth" / "biwi_eth.txt", walks, **options)
    return EthUcy().read(Input(path, str(options.get("first", 780))), "eth_test", raw).validate()


def test_a_window_becomes_a_scene(tmp_path: Path) -> None:
    scene = read(tmp_path, crowd())
    names = (scene.scene_id, scene.source, scene.split, scene.city)
    assert names == ("biwi_eth-780", "eth_ucy", "eth_test", "biwi_eth")
    assert (scene.num_history, scene.num_future, scene.num_steps) == (H, F, T)
    assert scene.period_s == PERIOD_S
    assert (scene.agent_kind == AgentKind.PEDESTRIAN).all()
    assert scene.num_polylines == 0
    roles = {  # by number; "8.0" is not observed, and complete tracks are scored
        "1.0": AgentRole.SCORED,
        "3.0": AgentRole.SCORED,
        "4.0": AgentRole.SCORED,
        "5.0": AgentRole.CONTEXT,
        "6.0": AgentRole.CONTEXT,
        "7.0": AgentRole.CONTEXT,
        "20.0": AgentRole.SCORED,
    }
    assert scene.agent_id == tuple(roles)
    assert scene.agent_role.tolist() == list(roles.values())
    last_observed = []
    for person in crowd()[:-1]:
        index = agent(scene, person.name)
        stop = person.start + len(person.positions)
        span = slice(person.start, stop)
        assert scene.valid[index].sum() == len(person.positions)
        assert scene.valid[index, span].all()
        assert_near(in_city(scene)[index, span], person.positions, GRID_M)
        if person.start < H <= stop:
            last_observed.append(person.positions[H - 1 - person.start])
    assert len(last_observed) == 6
    assert_near(scene.origin, np.mean(last_observed, 0), 0.5)


@pytest.mark.parametrize(("interval", "first"), [(1, 78), (6, 0), (10, -30)])
def test_the_interval_is_estimated_per_file(tmp_path: Path, interval: int, first: int) -> None:
    short = Walk("2.0", straight(5, (3, 0), (1.0, 0)), start=1)
    walks = [walk("1.0", 22), short]
    write(tmp_path / "eth" / "a.txt", walks, interval=interval, first=first)
    assert listed(tmp_path) == [str(first + step * interval) for step in range(3)]
    scene = EthUcy().read(EthUcy().inputs(tmp_path, "eth_test")[2], "eth_test", tmp_path)
    assert scene.valid[0].all()
    assert scene.valid[1].tolist() == [True] * 4 + [False] * 16
    assert_near(scene.velocity[0], np.tile((1.0, 0.0), (T, 1)), 1e-6)


def test_windows_do_not_span_gaps(tmp_path: Path) -> None:
    path = tmp_path / "eth" / "a.txt"
    before = lines([walk("1.0", 24)])
    later = Walk("1.0", straight(21, (30, 0), (1.0, 0)), start=26)
    after = lines([later], first=783)  # the grid moves, too
    write(path, [*before, *after])
    assert listed(tmp_path) == ["780", "790", "800", "810", "820", "1043", "1053"]

    rows = [row for row in lines([walk("1.0", 30)]) if not row.startswith("880.0 ")]
    write(path, rows)  # 10 and 19 frames
    assert EthUcy().inputs(tmp_path, "eth_test") == [Input(path)]

    rows = lines([walk("1.0", 22)])
    write(path, [*rows, rows[9].replace("870.0", "853.0")])  # a row off the grid removes no window
    assert listed(tmp_path) == ["780", "790", "800"]
    scene = EthUcy().read(Input(path, "780"), "eth_test", tmp_path).validate()
    assert_near(scene.velocity[0], np.tile((1.0, 0.0), (T, 1)), 1e-5)


@pytest.mark.parametrize("interval", [4, 7, 20])
def test_parts_with_another_interval_are_counted(tmp_path: Path, interval: int) -> None:
    path = tmp_path / "eth" / "a.txt"
    other = Walk("2.0", straight(25, (30, 0), (1.0, 0)))
    rows = [*lines([walk("1.0", 40)]), *lines([other], interval=interval, first=1503)]
    write(path, rows)
    with collect_dropped() as dropped:
        assert len(listed(tmp_path)) == 21
    [(cause, count)] = dropped.items()
    assert cause == (
        path,
        "row: column 0 (frame): another interval than most rows, which have steps of 10",
    )
    assert count >= 23


def test_rows_of_one_frame_with_different_positions_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "eth" / "a.txt"
    rows = lines([walk("1.0", 22), Walk("2.0", straight(22, (3, 0), (1.0, 0)))])
    write(path, [*rows, rows[4], rows[7].replace(rows[7].split()[13], "431.0")])
    scene = EthUcy().read(Input(path, "780"), "eth_test", tmp_path).validate()
    assert scene.agent_role.tolist() == [AgentRole.SCORED, AgentRole.CONTEXT]
    assert np.flatnonzero(~scene.valid[1]).tolist() == [3]


def test_windows_do_not_cross_files(tmp_path: Path) -> None:
    folder = tmp_path / "univ"
    write(folder / "students001.txt", [walk("1.0", 19, start=2)])
    write(folder / "students003.txt", [walk("1.0", 21, start=21)])
    write(folder / "students004.txt", [walk("1.0", 20, start=21)])
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
    names = [item.path.name for item in EthUcy().inputs(tmp_path, "my_set_train")]
    assert names == ["a_train.txt", "b_train.txt"]
    names = [item.path.name for item in EthUcy().inputs(tmp_path, "eth_test")]
    assert names == ["biwi_eth.txt"]
    [item] = EthUcy().inputs(tmp_path, "eth_val")
    assert EthUcy().read(item, "eth_val", tmp_path).scene_id == "biwi_hotel-780"


def test_stride_and_lengths_are_options(tmp_path: Path) -> None:
    write(tmp_path / "eth" / "a.txt", [walk("1.0", 26)])
    assert listed(tmp_path, reader=EthUcy(stride=3)) == ["780", "810", "840"]
    short = EthUcy(num_history=4, num_future=3)
    assert len(listed(tmp_path, reader=short)) == 20
    scene = short.read(short.inputs(tmp_path, "eth_test")[19], "eth_test", tmp_path).validate()
    assert scene.scene_id == "a-970"
    assert (scene.num_history, scene.num_future, scene.num_steps) == (4, 3, 7)


def test_velocity_is_the_last_displacement_and_the_first_step_shares_it(tmp_path: Path) -> None:
    scene = read(tmp_path, crowd())
    for person in crowd()[:6]:
        index = agent(scene, person.name)
        span = slice(person.start, person.start + len(person.positions))
        expected = np.diff(person.positions, axis=0) / PERIOD_S
        expected = np.concatenate([expected[:1], expected])
        assert_near(scene.velocity[index, span], expected, 1e-5, person.name)
        assert not scene.velocity[index][~scene.valid[index]].any()
        if person.name != "20.0":  # does not move
            heading = np.arctan2(expected[:, 1], expected[:, 0])
            error = np.sin(scene.heading[index, span] - heading)
            assert_near(error, 0.0, 1e-5, person.name)
    index = agent(scene, "7.0")  # one observed frame: the second one is in the future
    assert scene.valid[index, H - 1]
    assert not scene.velocity[index, H - 1].any()
    assert scene.heading[index, H - 1] == 0.0
    assert_near(scene.velocity[index, H:], -1.0, 1e-5)


def test_velocity_accounts_for_missing_frames(tmp_path: Path) -> None:
    rows = lines([*crowd(), Walk("9.0", straight(T, (3.0, 3.0), (0.0, -1.5)))])
    path = tmp_path / "eth" / "a.txt"
    gone = ("810.0 9.0 ", "820.0 9.0 ", "830.0 9.0 ")
    write(path, [row for row in rows if not row.startswith(gone)])
    scene = EthUcy().read(Input(path, "780"), "eth_test", tmp_path).validate()
    index = agent(scene, "9.0")
    assert scene.agent_role[index] == AgentRole.CONTEXT
    assert np.flatnonzero(~scene.valid[index]).tolist() == [3, 4, 5]
    velocity = scene.velocity[index][scene.valid[index]]
    assert_near(velocity, np.tile((0.0, -1.5), (T - 3, 1)), 1e-5)


def test_standing_agents_have_no_heading_and_stopping_ones_keep_theirs(tmp_path: Path) -> None:
    jitter = 0.05 * np.random.default_rng(0).uniform(-1, 1, (T, 2))
    standing = straight(T, (3, 3), (0, 0)) + jitter
    distance = np.minimum(np.arange(T), 4)[:, None]
    stops = straight(T, (0.0, 0.0), (0.0, 0.0)) + distance * (-0.3, 0.3) + jitter
    turns = straight(T, (5.0, 5.0), (1.0, 0.0))
    turns[4:] = turns[3]
    turns[4:, 1] += 0.4 * np.arange(1, T - 3)
    walks = [Walk("1.0", standing), Walk("2.0", stops), Walk("3.0", turns)]
    scene = read(tmp_path, walks)
    assert not scene.heading[0].any()
    assert np.abs(scene.heading[1] - 0.75 * np.pi).max() < 0.35
    assert np.abs(scene.heading[2, :4]).max() < 1e-5
    assert np.abs(scene.heading[2, 4:] - np.pi / 2).max() < 1e-5  # at once, not after some steps


def test_training_windows_at_a_higher_tempo(tmp_path: Path) -> None:
    angle = 0.1 * np.arange(42)
    bend = CORNER + 5 * np.stack([np.cos(angle), np.sin(angle)], -1)
    other = straight(30, (0, 0), (1.0, 0.5))
    missing = "830.0 2.0 "  # frame 5
    rows = lines([Walk("1.0", bend), Walk("2.0", other)])
    rows = [row for row in rows if not row.startswith(missing)]
    for part in ("train", "val"):
        write(tmp_path / "eth" / f"a_{part}.txt", rows)
    write(tmp_path / "eth" / "b_train.txt", [walk("1.0", 20)])  # too short for other tempos
    reader = EthUcy(tempo=2)
    plain = [str(780 + 10 * start) for start in range(23)]
    slower = [f"{first}x1.5" for first in plain[:13:2]]
    assert listed(tmp_path, "eth_val", reader) == plain
    assert listed(tmp_path, "eth_train") == [*plain, "780"]
    assert listed(tmp_path, "eth_train", reader) == [*plain, "780x2.0", "800x2.0", "780"]
    assert listed(tmp_path, "eth_train", EthUcy(tempo=1.5)) == [*plain, *slower, "780"]
    every_second = listed(tmp_path, "eth_train", EthUcy(tempo=2, stride=2))
    assert every_second == [*plain[::2], "780x2.0", "780"]
    known = [*range(5), *range(6, 30)]  # frames of the second person
    for start, tempo in [(0, 2.0), (3, 2.0), (0, 1.5), (12, 1.5)]:
        item = Input(tmp_path / "eth" / "a_train.txt", f"{780 + 10 * start}x{tempo}")
        scene = reader.read(item, "eth_train", tmp_path).validate()
        assert scene.scene_id == f"a-{item.part}"
        assert (scene.period_s, scene.num_steps) == (PERIOD_S, T)
        time = start + tempo * np.arange(T)
        index = agent(scene, "1.0")
        x = np.interp(time, np.arange(42), bend[:, 0])
        y = np.interp(time, np.arange(42), bend[:, 1])
        expected = np.stack([x, y], -1)
        assert scene.valid[index].all()
        assert scene.agent_role[index] == AgentRole.SCORED
        assert_near(in_city(scene)[index], expected, GRID_M)
        velocity = np.diff(expected, axis=0) / PERIOD_S
        assert_near(scene.velocity[index, 1:], velocity, 1e-4)
        between_known = np.isin(np.floor(time), known) & np.isin(np.ceil(time), known)
        assert np.array_equal(scene.valid[agent(scene, "2.0")], between_known)
        assert scene.agent_role[agent(scene, "2.0")] == AgentRole.CONTEXT


@pytest.mark.parametrize("ends", [False, True])
def test_the_future_changes_roles_only(tmp_path: Path, ends: bool) -> None:
    scene = read(tmp_path, crowd())
    walks = crowd()
    rng = np.random.default_rng(2)
    for person in walks:
        future = person.positions[max(0, H - person.start) :]
        future[:] = CORNER + rng.normal(0, 20, future.shape)
        if ends and person.name != "3.0":
            person.positions = person.positions[: max(1, H - person.start)]
    changed = read(tmp_path, walks)
    assert_same_history(scene, changed, roles=False)
    assert not np.allclose(scene.velocity[:, H:], changed.velocity[:, H:])
    scored = {"3.0"} if ends else {"1.0", "3.0", "4.0", "20.0"}
    assert with_role(changed, AgentRole.SCORED) == scored


@pytest.mark.parametrize("last", [1, 6, 12])
def test_every_step_depends_on_earlier_steps_only(tmp_path: Path, last: int) -> None:
    scene = read(tmp_path, crowd())
    rng = np.random.default_rng(3)
    # The first step of a person uses the second one.
    walks = [person for person in crowd() if person.start <= last - 1 or person.start >= H - 1]
    for person in walks:
        later = person.positions[max(0, last + 1 - person.start) :]
        later += rng.normal(0, 5, later.shape)
    changed = read(tmp_path, walks)
    for person in walks:
        if person.name != "8.0":
            assert_same_steps(scene, changed, person.name, last + 1, 1e-5)


def test_real_windows_equal_the_protocol(real_data: Path) -> None:
    reader = EthUcy()
    raw = real_data / "eth_ucy"
    inputs = {split: reader.inputs(raw, split) for split in reader.splits(raw)}
    assert {split: len(items) for split, items in inputs.items()} == reader.published
    assert all(item.part for items in inputs.values() for item in items)


@pytest.mark.parametrize("split", ["eth_test", "hotel_train"])
def test_real_rows_are_kept(real_data: Path, split: str) -> None:
    reader = EthUcy()
    raw = real_data / "eth_ucy"
    rows: dict[Path, dict[int, dict[str, tuple[float, float]]]] = {}
    for item in reader.inputs(raw, split)[::29]:
        if item.path not in rows:
            rows[item.path] = read_positions(item.path)
        frames = [rows[item.path][int(item.part) + step] for step in range(T)]
        observed = set().union(*frames[:H])
        scene = reader.read(item, split, raw)
        position = in_city(scene)
        assert set(scene.agent_id) == observed
        assert scene.valid.sum() == sum(len(observed & set(frame)) for frame in frames)
        for step, frame in enumerate(frames):
            for name in observed & set(frame):
                index = agent(scene, name)
                assert scene.valid[index, step]
                assert_near(position[index, step], frame[name], GRID_M)
        complete = {name for name in observed if all(name in frame for frame in frames)}
        assert with_role(scene, AgentRole.SCORED) == complete


def read_positions(path: Path) -> dict[int, dict[str, tuple[float, float]]]:
    """x and y in metres, by frame and name."""
    frames: dict[int, dict[str, tuple[float, float]]] = defaultdict(dict)
    for line in path.read_text().splitlines():
        words = line.split(" ")
        frame = int(float(words[0]))
        frames[frame][words[1]] = (float(words[13]), float(words[15]))
    return frames
