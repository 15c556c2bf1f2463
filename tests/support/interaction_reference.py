"""The metrics of INTERACTION in plain Python, from rows of the csv files: a reference."""

import math
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np

Row = dict[str, str]  # of a csv file
Tracks = dict[str, dict[int, Row]]  # by track and frame
# frames
NOW = 10
FIRST_FUTURE = 11
LAST = 40


class Box(NamedTuple):
    """A car at one frame: metres and radians."""

    x: float
    y: float
    heading: float
    length: float
    width: float


class Case:
    """The cars of a case that are scored, their recorded rows and forecasts.

    `forecast` is [K, 30, 2] by track.
    """

    def __init__(self, tracks: Tracks, forecast: dict[str, np.ndarray], is_hpnet: bool) -> None:
        required = range(1, LAST + 1) if is_hpnet else (NOW, LAST)
        self.tracks = tracks
        self.forecast = forecast
        self.cars: list[str] = []
        for name, rows in tracks.items():
            is_car = rows[min(rows)]["agent_type"] == "car"
            if is_car and all(frame in rows for frame in required):
                self.cars.append(name)
        self.worlds = range(len(forecast[self.cars[0]]))
        self.boxes: dict[tuple[str, int], list[Box]] = {}  # by car and world, frames 11 to 40
        for car in self.cars:
            for world in self.worlds:
                self.boxes[car, world] = self._predicted_boxes(car, world)

    def value(self, car: str, frame: int, field: str) -> float:
        return float(self.tracks[car][frame][field])

    def position(self, car: str, frame: int) -> tuple[float, float]:
        return self.value(car, frame, "x"), self.value(car, frame, "y")

    def future_frames(self, car: str) -> list[int]:
        """The recorded ones."""
        return [frame for frame in range(FIRST_FUTURE, LAST + 1) if frame in self.tracks[car]]

    def recorded_box(self, car: str, frame: int) -> Box:
        x, y = self.position(car, frame)
        heading = self.value(car, frame, "psi_rad")
        return Box(x, y, heading, *self._size(car))

    def _predicted_boxes(self, car: str, world: int) -> list[Box]:
        path = self.forecast[car][world]
        headings = self._headings(car, path)
        boxes = []
        for (x, y), heading in zip(path.tolist(), headings, strict=True):
            boxes.append(Box(x, y, heading, *self._size(car)))
        return boxes

    def _size(self, car: str) -> tuple[float, float]:
        return self.value(car, NOW, "length"), self.value(car, NOW, "width")

    def _headings(self, car: str, path: np.ndarray) -> list[float]:
        """The direction from the step before to the step after, if they are 0.2 m apart."""
        points = [self.position(car, NOW), *path.tolist(), path[-1].tolist()]
        heading = self.value(car, NOW, "psi_rad")
        headings = []
        for before, after in zip(points[:-2], points[2:], strict=True):
            if math.dist(before, after) >= 0.2:
                heading = math.atan2(after[1] - before[1], after[0] - before[0])
            headings.append(heading)
        return headings

    # ---- errors of a car in a world

    def error(self, car: str, world: int, frame: int) -> float:
        predicted = self.forecast[car][world, frame - FIRST_FUTURE]
        return math.dist(predicted, self.position(car, frame))

    def errors(self, car: str, world: int) -> list[float]:
        return [self.error(car, world, frame) for frame in self.future_frames(car)]

    def ade(self, car: str, world: int) -> float:
        return float(np.mean(self.errors(car, world)))

    def fde(self, car: str, world: int) -> float:
        return self.error(car, world, LAST)

    def misses(self, car: str, world: int) -> bool:
        """The end is over 1 m off sideways, or over 1 to 2 m lengthways, by speed."""
        speed = math.hypot(self.value(car, LAST, "vx"), self.value(car, LAST, "vy"))
        heading = self.value(car, LAST, "psi_rad")
        x, y = self.position(car, LAST)
        end_x, end_y = self.forecast[car][world, -1]
        dx = end_x - x
        dy = end_y - y
        along = dx * math.cos(heading) + dy * math.sin(heading)
        across = dy * math.cos(heading) - dx * math.sin(heading)
        if speed < 1.4:
            limit = 1.0
        elif speed > 11:
            limit = 2.0
        else:
            limit = 1 + (speed - 1.4) / (11 - 1.4)
        return abs(along) > limit or abs(across) > 1.0

    # ---- errors of a world

    def joint_ade(self, world: int) -> float:
        """The mean over all recorded steps of all cars."""
        errors: list[float] = []
        for car in self.cars:
            errors += self.errors(car, world)
        return sum(errors) / len(errors)

    def joint_fde(self, world: int) -> float:
        return float(np.mean([self.fde(car, world) for car in self.cars]))

    def joint_miss_rate(self, world: int) -> float:
        return float(np.mean([self.misses(car, world) for car in self.cars]))

    def cars_collide(self, world: int) -> bool:
        for first, second in combinations(self.cars, 2):
            if any(map(touch, self.boxes[first, world], self.boxes[second, world])):
                return True
        return False

    def ego_collides(self, ego: str, world: int) -> bool:
        """The recorded path of one car crosses another forecast."""
        for car in self.cars:
            if car == ego:
                continue
            for frame in self.future_frames(ego):
                predicted = self.boxes[car, world][frame - FIRST_FUTURE]
                if touch(self.recorded_box(ego, frame), predicted):
                    return True
        return False


def circles(box: Box) -> list[tuple[float, float]]:
    """Centers of the 2, 3 or 5 circles that cover a car, by its length."""
    end = (box.length - box.width) / 2
    offsets = [-end, end]
    if box.length >= 4:
        offsets.append(0.0)
    if box.length >= 8:
        offsets += [-end / 2, end / 2]
    cos = math.cos(box.heading)
    sin = math.sin(box.heading)
    return [(box.x + offset * cos, box.y + offset * sin) for offset in offsets]


def touch(first: Box, second: Box) -> bool:
    limit = (first.width + second.width) / math.sqrt(3.8)
    for center in circles(first):
        if any(math.dist(center, other) < limit for other in circles(second)):
            return True
    return False


def mean_minimum(error: Callable[[str, int], float], case: Case) -> float:
    """The mean over cars of the smallest error of a car in any world."""
    minima = []
    for car in case.cars:
        minima.append(min(error(car, world) for world in case.worlds))
    return float(np.mean(minima))


def metrics_of_case(case: Case) -> dict[str, float]:
    """The metrics of a case by name."""
    cars = case.cars
    worlds = case.worlds
    fde = [case.joint_fde(world) for world in worlds]
    collides = [case.cars_collide(world) for world in worlds]
    miss_rate = [case.joint_miss_rate(world) for world in worlds]
    consistent = [miss_rate[world] for world in worlds if not collides[world]]
    ego_hits = [all(case.ego_collides(car, world) for world in worlds) for car in cars]
    return {
        "minJointADE": min(case.joint_ade(world) for world in worlds),
        "minJointFDE": min(fde),
        "minJointMR": min(miss_rate),
        "consistent_minJointMR": min(consistent, default=1.0),
        "cross_collision_rate": float(np.mean(collides)),
        "best_world_collision_rate": float(collides[fde.index(min(fde))]),
        "ego_collision_rate": float(np.mean(ego_hits)),
        "minADE": mean_minimum(case.ade, case),
        "minFDE": mean_minimum(case.fde, case),
        "MR": mean_minimum(case.misses, case),
        "ADE_1": float(np.mean([case.ade(car, 0) for car in cars])),
        "FDE_1": float(np.mean([case.fde(car, 0) for car in cars])),
        "num_cars": len(cars),
    }
