"""Values that do not fit each other: units and frames of tracks and lanes, noise that is right."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import fixtures
from support.tables import frame, read, write_lanes

from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.readers.table.reader import Table
from trajformer.errors import SceneError, TrajformerWarning
from trajformer.scenes.geometry import wrap
from trajformer.scenes.plausibility import check_units
from trajformer.scenes.scene import Scene

READER = Table(num_history=50, num_future=10)
SPEED = 6.0
DIRECTIONS = np.array([0.0, 1.6, 3.0, -1.5, 0.1, 2.2])  # of six cars
COMPASS = {"angle_unit": "deg", "heading_from": "north", "clockwise": True}


def cars(count: int = 6, speed: float = SPEED, seed: int = 0, noise: float = 0.0) -> pd.DataFrame:
    """Cars that drive straight ahead with right headings and velocities, 6 s at 10 Hz."""
    rng = np.random.default_rng(seed)
    step = np.arange(60)
    parts = []
    for number, direction in enumerate(DIRECTIONS[:count]):
        along = 0.1 * speed * step
        columns = {
            "track_id": f"car {number}",
            "step": step,
            "x": 20.0 * number + along * np.cos(direction) + noise * rng.normal(size=60),
            "y": 10.0 * number + along * np.sin(direction) + noise * rng.normal(size=60),
            "heading": direction,
            "vx": speed * np.cos(direction),
            "vy": speed * np.sin(direction),
            "kind": "vehicle",
        }
        parts.append(pd.DataFrame(columns))
    return frame(*parts)


def of(table: pd.DataFrame, *numbers: int) -> pd.Series:
    """Rows of some of the cars."""
    return table.track_id.isin([f"car {number}" for number in numbers])


def scene_of(folder: Path, table: pd.DataFrame, reader: Table = READER) -> Scene:
    """The scene of a table after all checks of a preparation."""
    scene = read(folder, table, reader)
    check_units(scene, 150.0)
    return scene


def error_of(folder: Path, table: pd.DataFrame) -> str:
    with pytest.raises(SceneError) as caught:
        scene_of(folder, table)
    message = str(caught.value)
    assert len(message.replace(str(folder), "")) < 350
    return message


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_right_values_raise_nothing(tmp_path: Path, noise: float) -> None:
    scene_of(tmp_path, cars(noise=noise))


def test_standing_walking_reversing_and_drifting_agents_are_right(tmp_path: Path) -> None:
    table = cars(noise=0.1)
    # One car waits with a velocity of zero, one reverses, one drifts, one walks sideways.
    stands = of(table, 1)
    table.loc[stands, ["vx", "vy"]] = 0.0
    table.loc[stands, ["x", "y"]] = table.loc[stands, ["x", "y"]].iloc[0].to_numpy()
    table.loc[of(table, 2), "heading"] -= np.pi
    table.loc[of(table, 2), ["x", "y", "vx", "vy"]] *= 0.5  # at 3 m/s
    table.loc[of(table, 3), "heading"] += 0.5
    table.loc[of(table, 4), "kind"] = "pedestrian"
    table.loc[of(table, 4), "heading"] += 1.6
    scene_of(tmp_path, table)


@pytest.mark.parametrize("period_s", [0.4, 0.5, 1.0])
def test_slow_clocks_are_right(tmp_path: Path, period_s: float) -> None:
    table = cars(speed=20.0, noise=0.1)  # 2 m in a step
    table[["vx", "vy"]] *= 0.1 / period_s
    table = table[table.step < 20]
    scene_of(tmp_path, table, Table(num_history=8, num_future=12, period_s=period_s))


def test_body_frame_velocities_of_a_few_agents_are_noticed(tmp_path: Path) -> None:
    table = cars()
    table.loc[of(table, 0, 1, 2, 4), "heading"] = 0.0
    straight = of(table, 0, 1, 2, 3, 4)
    table.loc[straight, "x"] = 0.1 * SPEED * table.step + 50
    table.loc[straight, "y"] = 3.0 * table.track_id.astype("category").cat.codes
    table = table.drop(columns="heading").assign(vx=SPEED, vy=0.0)
    message = error_of(tmp_path, table)
    assert "1 of 6 moving agents: in the frame of each agent?" in message


@pytest.mark.parametrize("wrong", [(0, 3), (0, 1, 2), tuple(range(6))])
def test_reversed_velocities_are_noticed(tmp_path: Path, wrong: tuple[int, ...]) -> None:
    table = cars()
    table.loc[of(table, *wrong), ["vx", "vy"]] *= -1
    message = error_of(tmp_path, table)
    assert f"vx, vy: more than 40 degrees from the direction of motion for {len(wrong)} " in message
    assert "of 6 moving agents: reversed?" in message


def test_one_agent_of_several_is_a_warning(tmp_path: Path) -> None:
    table = cars(3)
    table.loc[of(table, 1), ["vx", "vy"]] *= -1
    with pytest.warns(TrajformerWarning, match="1 of 3 moving agents"):
        scene_of(tmp_path, table)


def test_one_pedestrian_may_step_sideways(tmp_path: Path) -> None:
    table = cars(1, speed=1.3).assign(kind="pedestrian")
    table["heading"] += 1.6
    scene_of(tmp_path, table)


@pytest.mark.parametrize("factor", [1.94, 2.24, 3.6, 0.1])
def test_a_common_factor_of_speeds_is_noticed(tmp_path: Path, factor: float) -> None:
    table = cars()
    table[["vx", "vy"]] *= factor
    message = f"vx, vy: speeds are {factor:.3g} times the displacements per second"
    assert message in error_of(tmp_path, table)


def test_velocities_of_zero_are_noticed_for_walkers(tmp_path: Path) -> None:
    table = cars(speed=1.3).assign(vx=0.0, vy=0.0, kind="pedestrian")
    assert "vx, vy: zero for 6 of 6 moving agents" in error_of(tmp_path, table)


@pytest.mark.parametrize("offset", [0.25, 0.8, np.pi / 2, -1.0])
def test_a_common_offset_of_headings_is_noticed(tmp_path: Path, offset: float) -> None:
    table = cars(noise=0.1)
    table["heading"] += offset
    expected = f"heading: {np.degrees(offset):+.0f} degrees from the direction of motion for 6 of 6"
    assert expected in error_of(tmp_path, table)


def test_small_headings_in_degrees_are_noticed(tmp_path: Path) -> None:
    table = cars(3)
    directions = np.radians(np.repeat([0.2, 0.35, 0.5], 60))
    along = 0.1 * SPEED * table.step
    table["x"] = along * np.cos(directions)
    table["y"] = 5.0 * np.repeat([0, 1, 2], 60) + along * np.sin(directions)
    table = table.drop(columns=["vx", "vy"])
    table["heading"] = np.degrees(directions)
    assert "3 of 3 moving agents: in degrees (--angle-unit deg)?" in error_of(tmp_path, table)


def test_compass_headings_and_reversed_headings_are_noticed(tmp_path: Path) -> None:
    table = cars()
    compass = table.assign(heading=np.pi / 2 - table.heading)
    expected = "clockwise for 6 of 6 moving agents (--heading-from north --clockwise true)?"
    assert expected in error_of(tmp_path, compass)
    clockwise = table.assign(heading=-table.heading)
    assert "clockwise for 6 of 6 moving agents (--clockwise true)?" in error_of(tmp_path, clockwise)
    from_north = table.assign(heading=table.heading - np.pi / 2)
    assert "(--heading-from north)?" in error_of(tmp_path, from_north)
    some = table.copy()
    some.loc[of(table, 0, 3), "heading"] -= np.pi  # too fast to drive backwards
    assert "2 of 6 moving agents (median 180)" in error_of(tmp_path, some)


def test_options_correct_headings_in_other_conventions(tmp_path: Path) -> None:
    table = cars()
    for number, (other, options) in enumerate(
        [
            (-table.heading, {"clockwise": True}),
            (np.degrees(np.pi / 2 - table.heading), COMPASS),
            (table.heading - np.pi / 2, {"heading_from": "north"}),
        ]
    ):
        reader = Table(num_history=50, num_future=10, **options)
        scene = scene_of(tmp_path / str(number), table.assign(heading=other), reader)
        np.testing.assert_allclose(scene.heading[:, 49], wrap(DIRECTIONS), atol=1e-5)


def test_one_number_as_the_heading_of_all_agents_is_noticed(tmp_path: Path) -> None:
    message = error_of(tmp_path, cars().assign(heading=0.0))
    assert "heading: 0 for 6 of 6 moving agents, which move in several directions" in message
    scene_of(tmp_path / "one way", cars(1).assign(heading=0.0))


@pytest.mark.parametrize("kind", ["vehicle", "pedestrian"])
@pytest.mark.parametrize("factor", [0.001, 100.0])
def test_sizes_in_another_unit_are_noticed(tmp_path: Path, kind: str, factor: float) -> None:
    table = cars(speed=1.5).assign(kind=kind, length=factor * 1.5, width=factor * 0.8)
    message = f"the median length of 6 agents of the kind {kind} is {1.5 * factor:.4g} m"
    assert message in error_of(tmp_path, table)


def test_vehicles_wider_than_long_are_noticed(tmp_path: Path) -> None:
    table = cars().assign(length=1.9, width=4.6)
    assert "6 of 6 vehicles are wider than long" in error_of(tmp_path, table)
    table.loc[of(table, 1), ["length", "width"]] = (2.5, 2.4)
    scene_of(tmp_path / "one of six", table)


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("spacing", [0.0, 1e-5, 0.05, 2.0])
@pytest.mark.parametrize("origin", [(11.5, 48.1), (48.1, 11.5), (-122.4, 37.7), (0.0, 0.0)])
def test_longitudes_and_latitudes_are_noticed(
    tmp_path: Path, count: int, spacing: float, origin: tuple[float, float]
) -> None:
    table = cars(count)[["track_id", "step", "x", "y"]]
    number = table.track_id.str[-1].astype(int)
    table["x"] = origin[0] + 1.3e-5 * table.x + spacing * number
    table["y"] = origin[1] + 0.9e-5 * table.y + spacing * number
    assert "degrees instead of metres?" in error_of(tmp_path, table)


def test_kilometres_are_a_warning_and_pedestrians_in_centimetres_an_error(tmp_path: Path) -> None:
    table = cars()[["track_id", "step", "x", "y", "kind"]]
    in_kilometres = table.assign(x=500 + 1e-3 * table.x, y=5400 + 1e-3 * table.y)
    with pytest.warns(TrajformerWarning, match="kilometres instead of metres"):
        scene_of(tmp_path, in_kilometres)
    people = cars(speed=1.3)[["track_id", "step", "x", "y"]].assign(kind="pedestrian")
    in_centimetres = people.assign(x=100 * people.x, y=100 * people.y)
    assert "pedestrians move at 130 m/s (median)" in error_of(tmp_path, in_centimetres)


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("heading", lambda values: values + 0.8, "heading: .* 3 of 3 moving agents: in degrees"),
        ("velocity_x", lambda values: 0 * values, "vx, vy: .* of 3 moving agents"),
        ("velocity_x", lambda values: -values, "vx, vy: .* 3 of 3 moving agents: reversed"),
    ],
)
def test_other_readers_use_the_same_checks(
    tmp_path: Path, column: str, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    columns = fixtures.argoverse2_columns()
    columns[column] = change(columns[column])
    fixtures.write_argoverse2(tmp_path, columns)
    [item] = Argoverse2().inputs(tmp_path, "val")
    with pytest.raises(SceneError, match=message):
        Argoverse2().read(item, "val", tmp_path)


def lane_along(number: int) -> list[list[float]]:
    """A lane under a car of `cars`."""
    direction = DIRECTIONS[number]
    start = np.array([20.0 * number, 10.0 * number])
    end = start + 40.0 * np.array([np.cos(direction), np.sin(direction)])
    return [start.tolist(), end.tolist()]


def with_lanes(folder: Path, lanes: list[list[list[float]]]) -> pd.DataFrame:
    """Write lanes and return the tracks."""
    entries = [{"points": points} for points in lanes]
    write_lanes(folder / "lanes.json", *entries, geojson=False)
    return cars()


def test_lanes_far_from_all_agents_are_a_warning(tmp_path: Path) -> None:
    lanes = [lane_along(number) for number in range(6)]
    shifted = np.add(lanes, (2000.0, 0.0))
    table = with_lanes(tmp_path, shifted.tolist())
    with pytest.warns(TrajformerWarning, match=r"lanes.json: no lane within 100 m of any agent"):
        assert scene_of(tmp_path, table).num_polylines == 0
    table = with_lanes(tmp_path, np.add(lanes, (-60.0, 70.0)).tolist())
    with pytest.warns(TrajformerWarning, match="no lane within 10 m of any of 6 agents"):
        assert scene_of(tmp_path, table).num_polylines > 0


def test_a_radius_of_zero_asks_for_no_lanes(tmp_path: Path) -> None:
    table = with_lanes(tmp_path, [lane_along(0)])
    table["x"] += 20_000.0
    no_map = Table(num_history=50, num_future=10, map_radius_m=0.0)
    assert scene_of(tmp_path, table, no_map).num_polylines == 0


def test_lanes_against_or_beside_the_traffic_are_a_warning(tmp_path: Path) -> None:
    lanes = np.array([lane_along(number) for number in range(6)])
    table = with_lanes(tmp_path, lanes[:, ::-1].tolist())
    with pytest.warns(TrajformerWarning, match="6 of 6 moving vehicles drive against the lanes"):
        scene_of(tmp_path, table)
    both_ways = with_lanes(tmp_path, [*lanes.tolist(), *lanes[:, ::-1].tolist()])
    scene_of(tmp_path, both_ways)
    # one vehicle is on its lane, the others are far from all lanes
    table = with_lanes(tmp_path, lanes[:1].tolist())
    with pytest.warns(TrajformerWarning, match="moving vehicles are over 8 m from all lanes"):
        scene_of(tmp_path, table)


@pytest.mark.parametrize("north", [150.0, 5000.0])
def test_exchanged_coordinates_of_lanes_are_noticed(tmp_path: Path, north: float) -> None:
    lanes = np.add([lane_along(number) for number in range(6)], (0.0, north))
    table = with_lanes(tmp_path, lanes[..., ::-1].tolist())
    table["y"] += north
    assert "x and y of the lanes are exchanged" in error_of(tmp_path, table)


def test_lanes_in_degrees_with_long_roads_are_noticed(tmp_path: Path) -> None:
    short = [[11.5, 48.1], [11.5005, 48.1]]
    table = with_lanes(tmp_path, [short, [[11.5, 48.1], [12.3, 48.1]]])
    assert "lanes.json: coordinates look like degrees" in error_of(tmp_path, table)


def test_lanes_in_metres_of_tracks_in_degrees_are_one_error(tmp_path: Path) -> None:
    table = with_lanes(tmp_path, [[[691600.0, 5334000.0], [691700.0, 5334000.0]]])
    table = table[["track_id", "step", "x", "y"]]
    table["x"] = 11.5 + 1.3e-5 * table.x
    table["y"] = 48.1 + 0.9e-5 * table.y
    message = error_of(tmp_path, table)
    assert "(lanes at (691600, 5.334e+06), tracks at (11.5" in message
    assert "are the tracks in degrees" in message
