"""ScenarioNet, a format for scenes of Waymo, nuScenes, nuPlan, Lyft, Argoverse 2 and simulators.

`RAW/dataset_mapping.pkl` maps the file name of each scenario to its folder,
`RAW/dataset_summary.pkl` to its metadata. A scenario has tracks over all its steps, lanes, lines
and crossings of the map, and states of traffic lights. A scene is a window of it.

Stored velocities are not used: in nuScenes they are differences to the *next* step, so the last
observed one would contain the future. The velocity is the difference to the previous step. nuScenes
positions are interpolated between keyframes 0.5 s apart, at steps 0, 5, 10, ...: with the default
of 21 observed steps, the last one is a keyframe; after other steps, the observed positions point at
the next keyframe.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np

from data_prep.reader import Input
from data_prep.readers.columns import Agents
from data_prep.readers.plain_pickle import load_plain_pickle
from data_prep.readers.present import main_agent, size_at_present, with_lights
from data_prep.readers.scenarionet.scenario import (
    EGO_ID,
    MAX_BYTES,
    MAX_STEPS,
    MAX_UNPACKED,
    Scenario,
    get_timestamps,
    get_value,
    read_scenario,
)
from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError, one_line
from trajformer.scenes.kinematics import difference_velocity
from trajformer.scenes.plausibility import check_recorded
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

ROOT_SPLIT = "scenarios"  # the split of a data set directly in the raw folder
MAPPING = "dataset_mapping.pkl"
SUMMARY = "dataset_summary.pkl"
CLOCK_TOLERANCE = 0.2  # of a step between timestamps, relative to the period
_ROAD_USERS = (AgentKind.VEHICLE, AgentKind.PEDESTRIAN, AgentKind.CYCLIST)


@dataclass(frozen=True)
class ScenarioNet(Config, limits={"period_s": (0.001, 60.0), "map_radius_m": (0, np.inf)}):
    """Reader of ScenarioNet data sets.

    Attributes:
        history_s: length of the observed part of a scene, seconds.
        future_s: length of the part to predict, seconds.
        stride_s: seconds between the starts of scenes of a scenario; 0 = one scene, at the start of
            the scenario.
        period_s: seconds between steps; scenarios with other timestamps are skipped.
        scored: `listed` = the tracks to predict of the scenario's metadata, or as `all` if it
            lists none; `all` = vehicles, cyclists and pedestrians except the ego car. Both only if
            they are seen in the last observed step.
        map_radius_m: polylines within this distance of a scored agent or the ego car in the last
            observed step are kept.
    """

    history_s: float = 2.1
    future_s: float = 6.0
    stride_s: float = 0.0
    period_s: float = 0.1
    scored: Literal["listed", "all"] = "listed"
    map_radius_m: float = 100.0
    name: ClassVar[str] = "scenarionet"
    layout: ClassVar[str] = (
        "RAW/[<split>/]dataset_mapping.pkl, dataset_summary.pkl "
        "and the folders of scenarios that these name"
    )
    published: ClassVar[dict[str, int]] = {}  # depends on the data set

    def __post_init__(self) -> None:
        """Check that the times are whole steps."""
        super().__post_init__()
        for option, minimum in (("history_s", 2), ("future_s", 1), ("stride_s", 0)):
            seconds = getattr(self, option)
            steps = seconds / self.period_s
            is_whole = abs(steps - round(steps)) < 1e-6
            if not (minimum - 1e-6 < steps < MAX_STEPS and is_whole):
                limit = (
                    f"a multiple of {self.period_s:g} s (period_s), "
                    f"at least {minimum * self.period_s:g} s"
                )
                raise ConfigError(option, f"{seconds:g} s, expected {limit}")

    def splits(self, raw: Path) -> list[str]:
        """`scenarios` for a data set directly in raw, else the sub-folders that are data sets."""
        if (raw / MAPPING).is_file():
            return [ROOT_SPLIT]
        return sorted(path.parent.name for path in raw.glob(f"*/{MAPPING}"))

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The windows of each scenario, in the order of the file names.

        An unreadable list of scenarios is one input, the mapping.
        """
        is_root = split == ROOT_SPLIT and (raw / MAPPING).is_file()
        folder = raw if is_root else raw / split
        try:
            return list(self._windows(folder))
        except SceneError:
            return [Input(folder / MAPPING)]

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file is a list of scenarios."""
        return path.name in (MAPPING, SUMMARY)

    def _windows(self, folder: Path) -> Iterator[Input]:
        files, problems = _scenario_files(folder / MAPPING)
        for entry, problem in problems:
            yield Input(folder / MAPPING, entry, problem=problem)
        stride = self._steps(self.stride_s)
        if not stride:
            for path in files:
                yield Input(path)
            return

        # The number of windows follows from the timestamps in the summary.
        size = self._steps(self.history_s) + self._steps(self.future_s)
        summary = load_plain_pickle(folder / SUMMARY, MAX_BYTES, MAX_UNPACKED)
        for path in files:
            try:
                metadata = get_value(summary, path.name, dict, f"{folder / SUMMARY}: ")
                where = f"{folder / SUMMARY}: {one_line(path.name)}."
                length = len(get_timestamps(metadata, where))
            except SceneError as error:
                yield Input(path, problem=str(error))
                continue
            starts = range(0, length - size + 1, stride) or range(1)
            for start in starts:
                yield Input(path, f"{start:03d}of{length:03d}")

    def _steps(self, seconds: float) -> int:
        return round(seconds / self.period_s)

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window.

        Raises SceneError also if the scenario is shorter, has another clock, or no agent to score.
        """
        path = item.path
        if path.name == MAPPING:
            count = len(list(self._windows(path.parent)))
            raise SceneError(f"{path}: {count} windows now, the list was unreadable before")
        scenario = read_scenario(path)
        start_text, _, length_text = item.part.partition("of")
        num_steps = len(scenario.time)
        if length_text and int(length_text) != num_steps:
            raise SceneError(
                f"{path}: length: {num_steps} steps, {SUMMARY} has {int(length_text)}: "
                "make the summary again"
            )
        # A pause in another part of the scenario does not matter.
        start = int(start_text or 0)
        history = self._steps(self.history_s)
        size = history + self._steps(self.future_s)
        self._check_clock(scenario.time[start : start + size], path)
        has_no_future = num_steps - start == history  # as in a test part
        if start + size > num_steps and not has_no_future:
            raise SceneError(
                f"{path}: length: {num_steps} steps, a scene has {size} (history_s and future_s)"
            )
        scene_id = f"{path.stem}-{start:03d}" if start_text else path.stem
        return self._scene(_window(scenario, slice(start, start + size)), scene_id, split, path)

    def _scene(self, window: Scenario, scene_id: str, split: str, path: Path) -> Scene:
        """The scene of a scenario of H + F steps."""
        history = self._steps(self.history_s)
        last = history - 1
        is_present = window.valid[:, last]
        role = self._roles(window, is_present, path)
        is_ego = window.is_ego
        velocity = difference_velocity(window.position, window.valid, history, self.period_s)

        center = window.position[main_agent(role, is_ego, is_present), last]
        is_important = is_present & (is_ego | (role > AgentRole.CONTEXT))
        important_position = window.position[is_important, last]
        lanes = window.lanes.near(important_position, self.map_radius_m, path)

        agent_id = np.where(is_ego, EGO_ID, np.array(window.agent_id, object)).tolist()
        agents = Agents(
            agent_id=agent_id,
            kind=window.kind,
            role=role,
            position=window.position,
            heading=window.heading,
            velocity=velocity,
            valid=window.valid,
        )
        name = (scene_id, self.name, split, window.city)
        clock = (self.period_s, history, self._steps(self.future_s))
        scene = agents.scene(name, clock, center, lanes)
        check_recorded(scene, heading=True, where=path)
        size = size_at_present(window.size, window.valid, history)
        scene = replace(scene, agent_size=size)
        return with_lights(scene, lanes, window.light_lane, window.light_state)

    def _check_clock(self, time: np.ndarray, path: Path) -> None:
        """SceneError unless the timestamps are `period_s` apart."""
        step = np.diff(time)
        error = np.abs(step - self.period_s).max()
        drift = (time[-1] - time[0]) / (len(time) - 1) / self.period_s - 1.0
        if error <= CLOCK_TOLERANCE * self.period_s and abs(drift) < 0.01:
            return
        if np.isnan(time).any():
            number = int(np.isnan(time).argmax())
            raise SceneError(f"{path}: metadata.ts: step {number} of the window has no timestamp")
        between = f"{step.min():g} to {step.max():g} s"
        if np.ptp(step) < 1e-6:
            between = f"{step.min():g} s"
        raise SceneError(
            f"{path}: metadata.ts: {between} between steps, expected {self.period_s:g} s (period_s)"
        )

    def _roles(self, window: Scenario, is_present: np.ndarray, path: Path) -> np.ndarray:
        """AgentRole uint8 [A]; `is_present` is bool [A], True in the last observed step."""
        chosen_role = AgentRole.SCORED
        if self.scored == "all" or not window.listed:  # nuPlan lists no tracks
            chosen = np.isin(window.kind, _ROAD_USERS) & ~window.is_ego & is_present
            problem = "no road user is"
        else:
            chosen = np.isin(window.agent_id, window.listed) & is_present
            problem = f"none of {len(window.listed)} listed tracks is"
            if len(window.listed) == 1:
                chosen_role = AgentRole.FOCAL
        if not chosen.any():
            raise SceneError(
                f"{path}: metadata.tracks_to_predict: {problem} seen in the last observed step "
                "(scored, history_s)"
            )
        return np.where(chosen, chosen_role, AgentRole.CONTEXT).astype(np.uint8)


def _window(scenario: Scenario, steps: slice) -> Scenario:
    """Some steps of a scenario, with the agents that are seen in them."""
    seen = scenario.valid[:, steps].any(1)
    return scenario._replace(
        time=scenario.time[steps],
        agent_id=[scenario.agent_id[index] for index in np.flatnonzero(seen)],
        kind=scenario.kind[seen],
        is_ego=scenario.is_ego[seen],
        position=scenario.position[seen, steps],
        heading=scenario.heading[seen, steps],
        size=scenario.size[seen, steps],
        valid=scenario.valid[seen, steps],
        light_state=scenario.light_state[:, steps],
    )


def _scenario_files(mapping: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """The scenarios of a data set, by name; also entry and problem of those that are not usable."""
    folders = load_plain_pickle(mapping, MAX_BYTES, MAX_UNPACKED)
    if type(folders) is not dict or not folders:
        raise SceneError(f"{mapping}: expected a dict of file names and folders")
    files = []
    problems = []
    for name, folder in folders.items():
        if not _is_inside(name, folder):
            entry = str(name)[:80]
            if type(folder) is str:
                entry = f"{entry!r}: {folder[:80]!r}"
            entry = one_line(entry)
            problem = (
                f"{mapping}: {entry}: not a file in a folder inside {mapping.parent}: "
                "copy or link the folder there"
            )
            problems.append((entry, problem))
            continue
        files.append(mapping.parent / folder / name)
    return sorted(files), sorted(problems)


def _is_inside(name: Any, folder: Any) -> bool:
    """Whether an entry of a mapping is a pickle file in a folder below the mapping."""
    if type(name) is not str or type(folder) is not str or "\0" in name + folder:
        return False
    if "/" in name or not name.endswith(".pkl"):
        return False
    relative = PurePosixPath(folder)
    return not relative.is_absolute() and ".." not in relative.parts
