"""Small recordings in the layouts of inD, highD, SIND, TrajNet++ and others."""

import json
from collections.abc import Iterable
from pathlib import Path

STEPS = 12
SMALL = {"num_history": 5, "num_future": 5}


def write_rows(path: Path, names: str, rows: Iterable[Iterable[object]]) -> Path:
    """Write a csv file with a header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [names, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_ind(folder: Path, number: str = "00", frame_rate: float = 30.0, every: int = 3) -> None:
    """A car at 5 m/s to the south-east and a pedestrian, a row for every `every`-th frame."""
    names = "recordingId,trackId,frame,trackLifetime,xCenter,yCenter,heading,width,length,"
    names += "xVelocity,yVelocity"
    rows = []
    for step in range(STEPS):
        frame = step * every
        seconds = frame / frame_rate
        car = (20 + 3 * seconds, -30 - 4 * seconds, 306.8699, 1.8, 4.5, 3.0, -4.0)
        rows.append((0, 1, frame, step, *car))
        walker = (25.0, -20 + seconds, 90.0, 0.0, 0.0, 0.0, 1.0)
        rows.append((0, 7, frame, step, *walker))
    write_rows(folder / f"{number}_tracks.csv", names, rows)
    classes = [(0, 1, 1.8, 4.5, "car"), (0, 7, 0.0, 0.0, "pedestrian")]
    meta = folder / f"{number}_tracksMeta.csv"
    write_rows(meta, "recordingId,trackId,width,length,class", classes)
    names = "recordingId,locationId,frameRate,xUtmOrigin,yUtmOrigin"
    recording = [(0, 1, frame_rate, 293487.0, 5629711.0)]
    write_rows(folder / f"{number}_recordingMeta.csv", names, recording)


def write_highd(folder: Path) -> None:
    """Two cars of a highway at 25 Hz, on the upper and on the lower half."""
    rows = []
    for frame in range(1, 31):
        travel = 30.0 * (frame - 1) / 25
        rows.append((frame, 1, 300 - travel, 8.0, 4.0, 2.0, -30.0, 0.0))
        rows.append((frame, 2, 50 + travel, 20.0, 10.0, 2.5, 30.0, 0.0))
    names = "frame,id,x,y,width,height,xVelocity,yVelocity"
    write_rows(folder / "01_tracks.csv", names, rows)
    meta = [(1, 4.0, 2.0, "Car", 1), (2, 10.0, 2.5, "Truck", 2)]
    write_rows(folder / "01_tracksMeta.csv", "id,width,height,class,drivingDirection", meta)
    names = "id,frameRate,locationId,upperLaneMarkings,lowerLaneMarkings"
    write_rows(folder / "01_recordingMeta.csv", names, [(1, 25, 2, "7;11", "19;23;27")])


def write_sind(folder: Path) -> None:
    """A car and a pedestrian of a recording of SIND."""
    clock = [(step, round(step * 100.1, 4)) for step in range(STEPS)]
    cars = []
    walkers = []
    for step, time_ms in clock:
        seconds = time_ms / 1000
        motion = (5 * seconds, 2.0, 5.0, 0.0, 0.0, 0.0)
        cars.append((12, step, time_ms, "car", *motion, 4.5, 1.8))
        walkers.append(("P1", step, time_ms, "pedestrian", 9.0, 1.2 * seconds, 0.0, 1.2))
    names = "track_id,frame_id,timestamp_ms,agent_type,x,y,vx,vy"
    extra = ",yaw_rad,heading_rad,length,width"
    write_rows(folder / "Veh_smoothed_tracks.csv", names + extra, cars)
    write_rows(folder / "Ped_smoothed_tracks.csv", names, walkers)


def write_degrees_map(path: Path, latitude: float = 0.0) -> None:
    """A Lanelet2 map of one lanelet along the equator, from 0 to .001 degrees."""
    nodes = []
    for number, (lon, lat) in enumerate([(0, 4e-5), (1e-3, 4e-5), (0, 0), (1e-3, 0)], 1):
        nodes.append(f'<node id="{number}" lat="{latitude + lat}" lon="{lon}"/>')
    ways = (
        '<way id="10"><nd ref="1"/><nd ref="2"/></way><way id="11"><nd ref="3"/><nd ref="4"/></way>'
    )
    members = '<member type="way" ref="10" role="left"/><member type="way" ref="11" role="right"/>'
    tags = '<tag k="type" v="lanelet"/><tag k="subtype" v="road"/>'
    lanelet = f'<relation id="20">{members}{tags}</relation>'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<osm>" + "\n".join([*nodes, ways, lanelet]) + "</osm>")


def write_trajnet(path: Path, fps: float = 2.5, interval: int = 10) -> None:
    """Two scenes of two pedestrians at 1 m/s; the second one is missing in one frame."""
    lines: list[dict[str, object]] = []
    for number in range(2):
        first = number * interval
        scene = {"id": number, "p": 3, "s": first, "e": first + 20 * interval, "fps": fps}
        lines.append({"scene": scene | {"tag": [3, [1]]}})
    for step in range(22):
        lines.append({"track": {"f": step * interval, "p": 3, "x": round(step / fps, 4), "y": 2.0}})
        if step != 5:
            lines.append({"track": {"f": step * interval, "p": 5, "x": 1.0, "y": step / fps}})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")


def write_commonroad(path: Path) -> None:
    """Two successive lanelets, a car at 5 m/s, a parked car and one with occupied areas only."""
    lanelets = ""
    for number, start in ((1, 0), (2, 40)):
        bounds = ""
        for side, y in (("leftBound", 2), ("rightBound", -2)):
            points = "".join(
                f"<point><x>{x}</x><y>{y}</y></point>" for x in (start, start + 20, start + 40)
            )
            bounds += f"<{side}>{points}</{side}>"
        link = '<successor ref="2"/>' if number == 1 else '<predecessor ref="1"/>'
        kind = "<laneletType>urban</laneletType>"
        lanelets += f'<lanelet id="{number}">{bounds}{link}{kind}</lanelet>'
    states = [_state("initialState" if step == 0 else "state", step) for step in range(STEPS)]
    shape = "<shape><rectangle><length>4.5</length><width>1.8</width></rectangle></shape>"
    head = f"<type>car</type>{shape}"
    trajectory = f"<trajectory>{''.join(states[1:])}</trajectory>"
    obstacles = f'<dynamicObstacle id="30">{head}{states[0]}{trajectory}</dynamicObstacle>'
    parked = _state("initialState", 0, y=8.0, speed=0.0)
    obstacles += (
        f'<staticObstacle id="31"><type>parkedVehicle</type>{shape}{parked}</staticObstacle>'
    )
    obstacles += f'<dynamicObstacle id="32">{head}{states[0]}<occupancySet/></dynamicObstacle>'
    root = '<commonRoad commonRoadVersion="2020a" timeStepSize="0.1">'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{root}\n{lanelets}\n{obstacles}\n</commonRoad>\n")


def write_sumo(path: Path, period_s: float = 0.1) -> None:
    """A car to the east at 5 m/s and a person to the north at 1 m/s."""
    steps = []
    for step in range(STEPS):
        seconds = round(step * period_s, 2)
        x = round(5 * seconds, 3)
        car = f'<vehicle id="c" x="{x}" y="0" angle="90" type="DEFAULT_VEHTYPE" speed="5"/>'
        person = f'<person id="p" x="3" y="{seconds}" angle="0" speed="1" edge="e"/>'
        steps.append(f'<timestep time="{seconds:.2f}">{car}{person}</timestep>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<fcd-export>\n" + "\n".join(steps) + "\n</fcd-export>\n")


def write_vci(folder: Path, clip: str = "roundabout_01", frame_rate: float = 20.0) -> None:
    """A pedestrian to +y at 1 m/s and a car to +x at 5 m/s."""
    seconds = [frame / frame_rate for frame in range(2 * STEPS)]
    walker = [(0, n, "ped", 3.0, t, 0.0, 1.0) for n, t in enumerate(seconds)]
    car = [(0, n, "veh", 5 * t, 0.0, 0.0, 5.0) for n, t in enumerate(seconds)]
    names = "id,frame,label,x_est,y_est,"
    write_rows(folder / f"{clip}_traj_ped_filtered.csv", names + "vx_est,vy_est", walker)
    write_rows(folder / f"{clip}_traj_veh_filtered.csv", names + "psi_est,vel_est", car)


def _state(tag: str, step: int, y: float = 0.0, speed: float = 5.0) -> str:
    point = f"<point><x>{round(0.1 * speed * step, 4)}</x><y>{y}</y></point>"
    values = {"orientation": 0.0, "time": step, "velocity": speed}
    exact = "".join(f"<{name}><exact>{value}</exact></{name}>" for name, value in values.items())
    return f"<{tag}><position>{point}</position>{exact}</{tag}>"
