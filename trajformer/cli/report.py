"""`trajformer report`: the scores of forecast files as one HTML page."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.raw_scenes import RawScenes
from trajformer.cli.files import bars, check_outputs, skipped_note
from trajformer.cli.parsing import Parser, add_overwrite, new_parser
from trajformer.cli.results import (
    DETAILS,
    GROUP_KEYS,
    add_rules,
    checked_modes,
    groups_by,
    rules_of,
    score_modes,
)
from trajformer.cli.score import add_forecasts, recorded_scenes
from trajformer.errors import TrajformerError
from trajformer.scenes.scene import METRES, Scene
from trajformer.scenes.store import SceneStore

if TYPE_CHECKING:
    from trajformer.evaluation.breakdown import GroupKey
    from trajformer.evaluation.examples import Examples
    from trajformer.evaluation.forecast_file import AllModes, TrackForecast
    from trajformer.evaluation.scoring import Rules, Scoring
    from trajformer.plotting.report.build import Gallery, Picture
    from trajformer.plotting.report.sections import Record
    from trajformer.scenes.spec import DataSpec

MAX_FILES = 4  # as many colors
MAX_CITIES = 20  # in the groups by default
EXAMPLES = 4  # pictures of each group of scenes
MIN_HORIZONS, MAX_HORIZONS = 4, 8  # points of a chart
SPACINGS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
NO_CROWD = tuple(name for name in DETAILS if name != "crowd")
AGENTS = {
    "scored": "agents that the data set scores",
    "focal": "the focal agent of each scene",
    "moving": "agents that end 5 m or more from their present position",
    "all": "every agent seen in the last observed second",
}


def parser() -> Parser:
    """FORECASTS... (--store STORE | --raw SOURCE RAW) --out REPORT.html."""
    made = new_parser(
        "Score forecast files, as `trajformer score` does, and write one HTML page without "
        "scripts: metrics with intervals, paired differences from the first file, errors by "
        "horizon and group, calibration, map compliance, and pictures of scenes. By default with "
        f"the groups type, manoeuvre, speed and city, and the details {', '.join(NO_CROWD)}. "
        f"Up to {MAX_FILES} files."
    )
    add_forecasts(made)
    add_rules(made)
    made.add_argument("--out", type=Path, required=True, help="the HTML file")
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Write the page and print its path, number of scenes and size."""
    from trajformer.evaluation.examples import examples
    from trajformer.plotting.report.build import write_report

    if args.raw is not None:
        args.raw = [args.raw[0], Path(args.raw[1])]
    check_outputs(args, out="report.html")
    groups_by(args)  # an unknown group is an error before the work
    rules_of(args)
    _check_files(args.forecasts)
    scenes = _Indexed(recorded_scenes(args))
    contents = [checked_modes(path, scenes) for path in args.forecasts]
    rules = _rules(args, scenes.spec())
    scorings = []
    for path, name, modes in zip(args.forecasts, _names(args.forecasts), contents, strict=True):
        one = score_modes(args, scenes, path, modes, rules, bars())
        scorings.append(replace(one, label=name))
    record = _record(args, scenes, scorings)
    galleries = []
    for group in examples(scorings, EXAMPLES):
        galleries.append(_gallery(args, scenes, scorings, contents, group))
    title = f"Forecasts of {scenes.root.resolve().name}, split {scenes.split}"
    size = write_report(args.out, title, record, galleries)
    note = scenes.note()
    if note:
        print(f"trajformer report: {note}", file=sys.stderr)
    count = f"{len(scenes):,} scenes, {len(scorings[0].per_agent):,} agents"
    print(f"{args.out}: {count}, {size / 1e6:.1f} MB")


def _check_files(paths: Sequence[Path]) -> None:
    """Raise a TrajformerError if there are too many files, or one is given twice."""
    names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise TrajformerError(f"{' '.join(names)}: give different files")
    if len(names) > MAX_FILES:
        raise TrajformerError(f"{len(names)} files: at most {MAX_FILES} can be compared")


def _names(paths: Sequence[Path]) -> list[str]:
    """Names of files without folder and suffix, or whole paths if two of these are equal."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        return [str(path) for path in paths]
    return names


class _Indexed:
    """Recorded scenes that remember the index of each id, also of a raw folder."""

    def __init__(self, scenes: SceneStore | RawScenes) -> None:
        self.scenes = scenes
        self.root = scenes.root
        self.split = scenes.split
        self._indices: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int, /) -> Scene:
        scene = self.scenes[index]
        self._indices.setdefault(scene.scene_id, index)
        return scene

    def scene(self, scene_id: str) -> Scene:
        """A scene that was read before."""
        return self.scenes[self._indices[scene_id]]

    def spec(self) -> DataSpec:
        """The clock, horizon and unit of the scenes (TrajformerError: none can be read)."""
        from trajformer.evaluation.score import first_scene
        from trajformer.scenes.spec import DataSpec

        return DataSpec.of(first_scene(self))

    @property
    def unit(self) -> str:
        """Unit of the lengths in all scenes."""
        return self.scenes.unit

    @property
    def num_skipped(self) -> int:
        """Number of inputs without a scene."""
        return self.scenes.num_skipped

    def note(self) -> str:
        """A line about inputs that preparation skipped, or about warnings of a reader."""
        if isinstance(self.scenes, SceneStore):
            return skipped_note(self.scenes)
        found = self.scenes.warnings
        if not found:
            return ""
        return (
            f"{self.root}: {len(found)} warnings about its scenes, the first: {next(iter(found))}"
        )


def _rules(args: Namespace, spec: DataSpec) -> Rules:
    """The rules of the options; without options all details but crowd, and several horizons."""
    rules = rules_of(args)
    if args.details is None and spec.unit == METRES:
        names = (*NO_CROWD, *[name for name in rules.details if name not in NO_CROWD])
        rules = replace(rules, details=names)
    if args.horizons is None:
        rules = replace(rules, horizons_s=usual_horizons(spec))
    return rules


def usual_horizons(spec: DataSpec) -> tuple[float, ...]:
    """Up to `MAX_HORIZONS` round horizons in seconds, before the end."""
    period_s = spec.period_s or 1.0
    num_future = spec.num_future or 0
    for spacing_s in SPACINGS_S:
        steps = round(spacing_s / period_s)
        is_multiple = steps >= 1 and abs(steps * period_s - spacing_s) < 1e-6
        if is_multiple and MIN_HORIZONS * steps <= num_future <= MAX_HORIZONS * steps:
            break
    else:
        steps = max(-(-num_future // MAX_HORIZONS), 1)
    return tuple(round(step * period_s, 6) for step in range(steps, num_future, steps))


def usual_groups(unit: str | None, num_cities: int) -> list[GroupKey]:
    """The groups without --by: the limits of some are in metres, and a page has few cities.

    Text files of nuScenes have a frame for each recording, which is the city of its scenes.
    """
    keys: list[GroupKey] = ["type", "manoeuvre", "speed", "city"]
    assert set(keys) <= set(GROUP_KEYS)
    if unit != METRES:
        keys = ["type", "city"]
    if num_cities > MAX_CITIES:
        keys.remove("city")
    return keys


def _record(args: Namespace, scenes: _Indexed, scorings: Sequence[Scoring]) -> Record:
    """The content of the page, and facts about the scenes."""
    from trajformer.plotting.report.sections import Record

    spec = scorings[0].scenes
    rules = scorings[0].rules
    period_s = spec.period_s or 0.0
    num_future = spec.num_future or 0
    history = f"{spec.num_history} observed steps"
    agents = f"{args.agents}: {AGENTS[args.agents]}, with a recorded last step"
    if rules.complete:
        agents += " and a future recorded at every step"
    kind = "store" if isinstance(scenes.scenes, SceneStore) else f"raw {args.raw[0]}"
    facts = {
        "Scenes": f"{len(scenes):,} of split {scenes.split}; {scenes.num_skipped:,} inputs skipped",
        "Recordings": f"{kind} {scenes.root}, source {spec.source or 'unknown'}",
        "Clock": f"{history}, a step every {period_s:g} s",
        "Horizon": f"{num_future * period_s:g} s ({num_future} steps)",
        "Agents": agents,
        "Forecasts": "joint futures of a scene" if args.joint else "of single agents",
        "Unit": spec.unit or "unknown",
    }
    for number, path in enumerate(args.forecasts):
        facts[f"File {number + 1}"] = str(path)
    keys = groups_by(args)
    if args.by is None:
        keys = usual_groups(spec.unit, scorings[0].per_agent["city"].nunique())
    return Record(scorings, keys, facts)


def _gallery(
    args: Namespace,
    scenes: _Indexed,
    scorings: Sequence[Scoring],
    contents: Sequence[AllModes],
    group: Examples,
) -> Gallery:
    """The pictures of a group of scenes."""
    from trajformer.evaluation.examples import scene_errors
    from trajformer.plotting.report.build import Gallery

    errors = scene_errors(scorings)
    pictures = []
    for scene_id in group.scene_ids:
        scene = scenes.scene(scene_id)
        files = []
        for one, modes in zip(scorings, contents, strict=True):
            files.append(_scored_tracks(scene, one, modes))
        texts = ["-" if value != value else f"{value:.2f}" for value in errors.loc[scene_id]]
        pictures.append(_picture(scene, files, texts))
    return Gallery(group, pictures, _command(args, group))


def _scored_tracks(scene: Scene, scoring: Scoring, modes: AllModes) -> list[TrackForecast]:
    """The forecasts of the agents of a scene that were scored."""
    from trajformer.evaluation.columns import SCENE, TRACK
    from trajformer.evaluation.score import Findings, usable_tracks

    table = scoring.per_agent
    track_ids = table[TRACK][table[SCENE] == scene.scene_id].tolist()
    selected = {}
    for track_id in track_ids:
        selected[scene.scene_id, track_id] = modes[scene.scene_id, track_id]
    tracks = usable_tracks(selected, scene.num_future, Findings())
    return list(tracks.get(scene.scene_id, {}).values())


def _picture(
    scene: Scene, files: Sequence[Sequence[TrackForecast]], errors: Sequence[str]
) -> Picture:
    from trajformer.plotting.report.build import Picture
    from trajformer.plotting.report.pictures import scene_picture

    label = f"Scene {scene.scene_id} from above"
    return Picture(scene.scene_id, scene.city, errors, scene_picture(scene, files, label))


def _command(args: Namespace, group: Examples) -> str:
    """The command that shows the scenes of a group; empty without a store."""
    if args.store is None:
        return ""
    words = ["trajformer", "view", str(args.store), "--split", args.split, "--scene"]
    words += group.scene_ids
    words += ["--forecasts", *map(str, args.forecasts), "--out", "view.html"]
    return shlex.join(words)
