"""Score forecasts of any origin: match them with recorded scenes, and list what does not fit.

A model has the same record. Positions are float64 here, so errors equal the results of
other scorers to the precision of the recorded positions. A split is scored in parts, perhaps by
several processes; the record does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from trajformer.data.batch import Observation, SceneBatch, Truth, collate
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig
from trajformer.errors import SceneError, TrajformerError
from trajformer.evaluation.columns import ScoredBatch, restricted
from trajformer.evaluation.evaluate import Scenes
from trajformer.evaluation.forecast_file import (
    SUM_TOLERANCE,
    AllModes,
    Modes,
    TrackForecast,
    forecast_of,
)
from trajformer.evaluation.parts import Part, Slice, plan
from trajformer.evaluation.scoring import AgentChoice, Finding, Rules, Scoring, targets_of
from trajformer.evaluation.tally import Tally, TallyContents
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import DataSpec, check_scenes

BATCH_SIZE = 32  # scenes
MAX_EXAMPLES = 20  # of each kind, in the record
SAME_PROBABILITY = 1e-6  # of joint futures, in all tracks of a scene
KINDS = {  # of findings: not scored, or changed
    "unreadable": "scenes cannot be read and are not scored",
    "malformed": "forecasts are malformed and not scored",
    "duplicate": "agents are forecast more than once and not scored",
    "wrong horizon": "forecasts have another number of steps and are not scored",
    "probabilities": "forecasts have probabilities that do not sum to 1; they were normalized",
    "modes": "forecasts have fewer modes than others",
    "missing": "agents to score have no usable forecast",
    "unknown scene": "forecasts are of scenes that are not in the split",
    "unknown agent": "forecasts are of agents that are not in their scene",
    "not seen": "forecasts are of agents that are not seen in the last observed second",
    "not selected": "forecasts are of agents that --agents leaves out",
    "not counted": "forecasts are of agents that do not count (mostly no recorded last step)",
}
Tracks = Mapping[str, Mapping[str, TrackForecast]]  # by scene id and track id


@dataclass
class Findings:
    """Counts and first examples of agents and scenes that could not be scored as they are."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, scene_id: str, track_id: str, detail: str = "") -> None:
        """Add an agent to a kind of `KINDS`."""
        text = f"track {track_id} of scene {scene_id}"
        if detail:
            text += f": {detail}"
        self.add_text(kind, text)

    def add_text(self, kind: str, text: str) -> None:
        """Add an agent or scene, described by a text, to a kind of `KINDS`."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(text)

    def join(self, later: Findings) -> None:
        """Add the agents and scenes of a later part of the split."""
        for kind, count in later.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
            examples = self.examples.get(kind, []) + later.examples[kind]
            self.examples[kind] = examples[:MAX_EXAMPLES]

    def result(self) -> tuple[Finding, ...]:
        """The kinds that occur, in the order of `KINDS`."""
        findings = []
        for kind, text in KINDS.items():
            if kind in self.counts:
                examples = tuple(self.examples[kind])
                findings.append(Finding(kind, text, self.counts[kind], examples))
        return tuple(findings)


def usable_tracks(modes: AllModes, num_future: int, findings: Findings) -> Tracks:
    """The forecasts of F = `num_future` steps with valid values; all others are findings.

    Probabilities that do not sum to 1 are normalized.
    """
    scenes: dict[str, dict[str, TrackForecast]] = {}
    for (scene_id, track_id), of_track in modes.items():
        copies = _copies(of_track)
        if copies > 1:
            findings.add("duplicate", scene_id, track_id, f"{copies} times")
            continue
        of_track = _normalized(scene_id, track_id, of_track, findings)
        try:
            forecast = forecast_of(scene_id, track_id, of_track)
        except TrajformerError as error:
            reason = str(error).rpartition(": ")[2]
            findings.add("malformed", scene_id, track_id, reason)
            continue
        steps = forecast.position.shape[1]
        if steps != num_future:
            detail = f"{steps} steps, expected {num_future}"
            findings.add("wrong horizon", scene_id, track_id, detail)
            continue
        scenes.setdefault(scene_id, {})[track_id] = forecast
    _find_fewer_modes(scenes, findings)
    return scenes


def _find_fewer_modes(scenes: Tracks, findings: Findings) -> None:
    """List the forecasts with fewer modes than the largest number of modes."""
    counts = {}
    for scene_id, of_scene in scenes.items():
        for track_id, forecast in of_scene.items():
            counts[scene_id, track_id] = len(forecast.probability)
    largest = max(counts.values(), default=0)
    for (scene_id, track_id), count in counts.items():
        if count < largest:
            findings.add("modes", scene_id, track_id, f"{count}, others have {largest}")


def _copies(modes: Modes) -> int:
    """How often a track is forecast: its modes are several complete forecasts.

    They are one after another, or equal, with their modes in any order.
    """
    probability = np.array(modes.probability)
    total = probability.sum()
    if not np.isfinite(total) or total < 1.5:
        return 1
    copies = round(total)
    if len(probability) % copies:
        return 1
    parts = probability.reshape(copies, -1)
    if not _sum_to_one(parts):
        parts = np.sort(probability).reshape(-1, copies).T
    if not _sum_to_one(parts):
        return 1
    if parts.shape[1] == 1:  # one mode, or several modes with a probability of 1 each
        first = modes.position[0]
        if not all(np.array_equal(first, other) for other in modes.position[1:]):
            return 1
    return copies


def _sum_to_one(parts: np.ndarray) -> bool:
    """Whether each row [K] of probabilities sums to 1."""
    return bool((np.abs(parts.sum(1) - 1) <= SUM_TOLERANCE).all())


def _normalized(scene_id: str, track_id: str, modes: Modes, findings: Findings) -> Modes:
    """Modes with probabilities that sum to 1; malformed ones are unchanged."""
    probability = np.array(modes.probability)
    total = probability.sum()
    if not np.isfinite(total) or (probability < 0).any() or total <= 0:
        return modes
    if abs(total - 1) <= SUM_TOLERANCE:
        return modes
    findings.add("probabilities", scene_id, track_id, f"sum {total:.4g}")
    return modes._replace(probability=(probability / total).tolist())


def check_origin(forecast_scenes: DataSpec, scenes: Scenes) -> None:
    """Raise TrajformerError if forecasts were made for scenes of another unit or clock.

    A forecast fits scenes with any number of observed steps, because their ends are equal.
    """
    if len(scenes):
        expected = replace(forecast_scenes, num_history=None)
        owner = "the scenes of the forecasts have"
        check_scenes(DataSpec.of(first_scene(scenes)), expected, scenes.root, owner)


def first_scene(scenes: Scenes) -> Scene:
    """The first scene that can be read (TrajformerError: none can be read)."""
    reason = "it has none"
    for index in range(len(scenes)):
        try:
            return scenes[index]
        except SceneError as error:
            reason = str(error)
    raise TrajformerError(f"{scenes.root}: no scene of split '{scenes.split}' is usable: {reason}")


@dataclass(frozen=True, eq=False)
class ScoredPart:
    """The result of a part of a split, plain data that pass between processes."""

    contents: TallyContents
    findings: Findings
    used: set[str]  # ids of the scenes
    has_future: bool  # of at least one scene

    def record(self) -> dict[str, Any]:
        """The same as dictionaries, lists and tensors, which a file can hold without code."""
        return {
            "contents": self.contents.record(),
            "findings": vars(self.findings),
            "used": sorted(self.used),
            "has_future": self.has_future,
        }

    @classmethod
    def of(cls, record: dict[str, Any]) -> ScoredPart:
        """The part of a record."""
        return cls(
            TallyContents.of(record["contents"]),
            Findings(**record["findings"]),
            set(record["used"]),
            record["has_future"],
        )


# Scores the scenes of a part with their forecasts; it can be sent to other processes.
PartScorer = Callable[[Tracks, Scenes], ScoredPart]
# Scores parts of a split, and yields them in any order.
PartRunner = Callable[[PartScorer, list[Part], Tracks], Iterator[tuple[Part, ScoredPart]]]


def score(
    modes: AllModes,
    scenes: Scenes,
    *,
    agents: AgentChoice = "scored",
    rules: Rules = Rules(),
    joint: bool = False,
    label: str = "",
    progress: bool = False,
    run: PartRunner | None = None,
) -> Scoring:
    """The record of forecasts of some scenes.

    Args:
        modes: the forecasts, for example of `forecast_file.read_modes`.
        scenes: with the recorded futures.
        agents: to score.
        rules: which agents count, and which errors are taken. `agents` = "moving" sets its rule.
        joint: mode k of all agents of a scene is one joint future.
        label: name of the forecasts, for tables and errors.
        progress: show a progress bar.
        run: scores the parts of the split, for example by several processes; by default, they are
            scored one after another.

    Raises TrajformerError: no forecast can be scored, or the forecasts of a scene are not joint.
    """
    where = f"{scenes.root}: split '{scenes.split}'"
    spec = DataSpec.of(first_scene(scenes))
    rules = replace(rules, moving=rules.moving or agents == "moving")
    rules.check(spec)
    findings = Findings()
    tracks = usable_tracks(modes, spec.num_future or 0, findings)
    parts = plan(len(scenes), BATCH_SIZE)
    scorer = partial(score_part, agents=agents, rules=rules, joint=joint)
    try:
        if run is None:
            scored = dict(_one_by_one(scorer, parts, tracks, scenes, progress))
        else:
            scored = dict(run(scorer, parts, tracks))
    except TrajformerError as error:
        raise TrajformerError(f"{label}: {error}") from error

    tally = Tally(rules)
    used = set[str]()
    has_future = False
    for part in parts:
        one = scored.pop(part)
        tally.join(one.contents)
        findings.join(one.findings)
        used |= one.used
        has_future |= one.has_future
    _add_unused(tracks, used, findings)
    scoring = tally.scoring()
    found = findings.result()
    if scoring.per_agent.empty:
        reasons = [finding.line() for finding in found]
        if not has_future:
            reasons = ["its scenes have no recorded future"]
        reason = "; ".join(reasons) or "it has no forecasts"
        raise TrajformerError(f"{label}: no agent of {where} can be scored: {reason}")
    return replace(scoring, label=label, agents=agents, joint=joint, scenes=spec, findings=found)


def score_part(
    tracks: Tracks,
    scenes: Scenes,
    agents: AgentChoice,
    rules: Rules,
    joint: bool,
    advance: Callable[[int], object] = int,
) -> ScoredPart:
    """Score the scenes of a part; `advance` receives the number of scenes of each batch."""
    matching = _Matching(tracks, agents, rules, joint)
    tally = Tally(rules)
    for scored in matching.batches(scenes, advance):
        tally.add(scored)
    return ScoredPart(tally.contents(), matching.findings, matching.used, matching.has_future)


def _one_by_one(
    scorer: partial[ScoredPart],
    parts: list[Part],
    tracks: Tracks,
    scenes: Scenes,
    progress: bool,
) -> Iterator[tuple[Part, ScoredPart]]:
    """The parts in their order, scored by this process."""
    with tqdm(total=len(scenes), unit="scene", desc=scenes.split, disable=not progress) as bar:
        for part in parts:
            yield part, scorer(tracks, Slice(scenes, part), advance=bar.update)


def _add_unused(tracks: Tracks, used: set[str], findings: Findings) -> None:
    """List the forecasts of scenes that are not in the split."""
    for scene_id, of_scene in tracks.items():
        if scene_id not in used:
            for track_id in of_scene:
                findings.add("unknown scene", scene_id, track_id)


class _Match(NamedTuple):
    """Scene b and target s of a batch, with its forecast."""

    b: int
    s: int
    track: TrackForecast


@dataclass(eq=False)
class _Matching:
    """Brings forecasts and recorded scenes together."""

    tracks: Tracks
    agents: AgentChoice
    rules: Rules
    joint: bool

    def __post_init__(self) -> None:
        self.findings = Findings()
        self.used = set[str]()  # ids of scenes
        self.has_future = False  # of at least one scene

    def batches(self, scenes: Scenes, advance: Callable[[int], object]) -> Iterator[ScoredBatch]:
        """All scenes in order, with truth that is valid for the agents with a forecast."""
        config = BatchConfig(targets=targets_of(self.agents))
        for start in range(0, len(scenes), BATCH_SIZE):
            stop = min(start + BATCH_SIZE, len(scenes))
            read = self._read(scenes, range(start, stop))
            if read:
                batch = restricted(collate(read, config), self.rules)
                yield self._match(read, batch)
            advance(stop - start)

    def _read(self, scenes: Scenes, indices: range) -> list[Scene]:
        """The scenes that can be read; the others, of a raw folder, are findings."""
        read = []
        for index in indices:
            try:
                scene = scenes[index]
            except SceneError as error:
                self.findings.add_text("unreadable", str(error))
                continue
            self.has_future |= scene.num_steps > scene.num_history
            read.append(scene)
        return read

    def _match(self, scenes: Sequence[Scene], batch: SceneBatch) -> ScoredBatch:
        """The batch with the forecasts of its scenes."""
        observation = batch.observation
        valid = batch.truth.valid.clone()
        matched: list[_Match] = []
        num_targets = observation.target_mask.sum(1).tolist()
        for b, scene in enumerate(scenes):
            of_scene = self.tracks.get(scene.scene_id, {})
            targets = observation.agent_id[b][: num_targets[b]]
            is_recorded = valid[b, :, -1].tolist()
            for s, track_id in enumerate(targets):
                forecast = of_scene.get(track_id)
                if forecast is not None:
                    matched.append(_Match(b, s, forecast))
                elif is_recorded[s]:
                    self.findings.add("missing", scene.scene_id, track_id)
                    valid[b, s] = False
            counted = dict(zip(targets, is_recorded, strict=False))
            self._add_surplus(scene, set(observation.agent_id[b]), counted)
            self.used.add(scene.scene_id)
        forecast_of_batch = self._forecast(scenes, observation, matched)
        truth = Truth(batch.truth.position, valid)
        return ScoredBatch(scenes, SceneBatch(observation, truth), forecast_of_batch)

    def _add_surplus(self, scene: Scene, present: set[str], counted: Mapping[str, bool]) -> None:
        """List the forecasts of a scene that are not scored.

        `present` are the agents of its batch, `counted` says which targets have a recorded end.
        """
        in_scene = set(scene.agent_id)
        for track_id in self.tracks.get(scene.scene_id, {}):
            if track_id not in in_scene:
                self.findings.add("unknown agent", scene.scene_id, track_id)
            elif track_id not in present:
                self.findings.add("not seen", scene.scene_id, track_id)
            elif track_id not in counted:
                self.findings.add("not selected", scene.scene_id, track_id)
            elif not counted[track_id]:
                self.findings.add("not counted", scene.scene_id, track_id)

    def _forecast(
        self, scenes: Sequence[Scene], observation: Observation, matched: Sequence[_Match]
    ) -> Forecast:
        """The forecast of a batch in the frame of its scenes.

        Tracks with fewer modes than others repeat their last mode with probability 0.
        """
        num_modes = max([len(one.track.probability) for one in matched], default=1)
        lead = (*observation.target_mask.shape, num_modes)
        position = np.zeros((*lead, observation.num_future, 2))
        probability = np.full(lead, 1.0 / num_modes)
        for b, s, track in matched:
            count = len(track.probability)
            position[b, s, :count] = track.position - scenes[b].origin
            position[b, s, count:] = position[b, s, count - 1]
            probability[b, s, :count] = track.probability
            probability[b, s, count:] = 0.0
        with np.errstate(divide="ignore"):
            logit = np.log(probability)
        if self.joint:
            logit = _joint_logit(observation.scene_id, logit, matched)
        frame = observation.frame
        return Forecast(torch.from_numpy(position), torch.from_numpy(logit), frame)


def _joint_logit(
    scene_ids: Sequence[str], logit: np.ndarray, matched: Sequence[_Match]
) -> np.ndarray:
    """Logits [B, K] of the worlds of each scene.

    Raises TrajformerError: agents of a scene have different probabilities.
    """
    of_scenes = np.zeros((len(logit), logit.shape[2]))
    first: dict[int, int] = {}
    for b, s, _ in matched:
        expected = logit[b, first.setdefault(b, s)]
        if not np.allclose(np.exp(logit[b, s]), np.exp(expected), atol=SAME_PROBABILITY, rtol=0):
            reason = "its agents have different probabilities"
            raise TrajformerError(f"scene {scene_ids[b]}: {reason}; leave out --joint")
        of_scenes[b] = expected
    return of_scenes
