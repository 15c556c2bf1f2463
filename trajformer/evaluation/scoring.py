"""The record of a scoring: errors of each agent, and how they were computed.

A model (`evaluate.evaluate`) and a file of forecasts (`score.score`) give the same record. Tables
(`breakdown`) and renderings (`tables`) need nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from trajformer.errors import TrajformerError
from trajformer.scenes.scene import METRES
from trajformer.scenes.spec import DataSpec

if TYPE_CHECKING:
    import pandas as pd

AgentChoice = Literal["scored", "focal", "moving", "all"]
AGENT_CHOICES: tuple[AgentChoice, ...] = ("scored", "focal", "moving", "all")
Detail = Literal["map", "dynamics", "overlap", "calibration", "crowd"]
RECORDED = "recorded_"  # prefix of columns with values of the recording
MOVING_M = 5.0  # a moving agent ends at least this far from its last observed position
MIN_ADE = "ADE of the mode with the smallest end-point error, as in Argoverse 2"
FIRST_EXAMPLES = 3  # of a finding, in its line
STEP_TOLERANCE = 1e-3  # of a step, for horizons in seconds


@dataclass(frozen=True)
class Rules:
    """Which agents count, and which errors are taken.

    Attributes:
        moving: only agents that end at least `MOVING_M` metres from their last observed position.
        complete: only agents whose future is recorded at every step of the horizon.
        horizons_s: seconds; errors are also taken at these shorter horizons.
        best_of: also compute errors of the best of this number of modes.
        details: further groups of columns (`details`).
        collision_m: metres; agents that are closer collide, in the details "crowd".
    """

    moving: bool = False
    complete: bool = False
    horizons_s: tuple[float, ...] = ()
    best_of: int | None = None
    details: tuple[Detail, ...] = ()
    collision_m: float = 0.2

    def check(self, scenes: DataSpec) -> None:
        """Raise TrajformerError if scenes have other units or shorter horizons."""
        if self.moving and scenes.unit != METRES:
            reason = f"the limit of {MOVING_M:g} m needs metres, lengths are in {scenes.unit}"
            raise TrajformerError(f"--agents moving: {reason}")
        if self.details and scenes.unit != METRES:
            reason = f"its metrics need metres, lengths are in {scenes.unit}"
            raise TrajformerError(f"--details: {reason}")
        self.steps(scenes)

    def steps(self, scenes: DataSpec) -> list[int]:
        """The number of future steps of each horizon (TrajformerError: not a step of the scenes)"""
        period_s = scenes.period_s or 1.0
        num_future = scenes.num_future or 0
        steps = []
        for horizon_s in self.horizons_s:
            step = round(horizon_s / period_s)
            if not 1 <= step <= num_future:
                longest = f"{num_future * period_s:g} s"
                reason = f"expected {period_s:g} s to {longest}, the horizon of the scenes"
                raise TrajformerError(f"--horizons {horizon_s:g}: {reason}")
            if abs(horizon_s / period_s - step) > STEP_TOLERANCE:
                reason = f"expected a multiple of the scenes' period of {period_s:g} s"
                raise TrajformerError(f"--horizons {horizon_s:g}: {reason}")
            steps.append(step)
        return steps


def targets_of(agents: AgentChoice) -> Literal["scored", "focal", "all"]:
    """The agents that a model has to forecast for a choice of agents to score."""
    if agents == "moving":
        return "all"
    return agents


@dataclass(frozen=True)
class Finding:
    """A kind of agents or scenes of a forecast file that could not be scored as they are.

    Attributes:
        kind: short name.
        text: sentence about the kind, without its number.
        count: their number.
        examples: the first ones.
    """

    kind: str
    text: str
    count: int
    examples: tuple[str, ...]

    def to_plain(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    def line(self) -> str:
        """One line with the number and the first examples."""
        first = "; ".join(self.examples[:FIRST_EXAMPLES])
        return f"{self.count:,} {self.text} (first: {first})"


@dataclass(frozen=True, eq=False)
class Scoring:
    """The record of a scoring.

    Attributes:
        metrics: means by name: num_agents, minADE6, minFDE6, ... (`trajformer.evaluation.metrics`).
        per_agent: a row per scored agent, which has a recorded last step: ids, type, errors and
            distance moved in metres, manoeuvre, `future_steps` (the number of recorded future
            steps), role, city and `speed` (m/s, in the last observed step).
        per_scene: a row per scene with errors of joint forecasts; empty for other forecasts.
        metric_columns: columns of `per_agent` with errors, which have means. Smaller is better.
        detail_columns: further columns of `per_agent` with means.
        rules: which agents count, and which errors are taken.
        label: name of the model or file.
        agents: kind of the forecast agents.
        joint: modes are joint futures of a scene.
        on_training_split: the model was trained on a split of this name of this data set.
        scenes: clock, horizon and unit of the scenes.
        num_targets: forecast agents, with and without a recorded last step; of a file, the agents
            that it should forecast.
        findings: agents and scenes of a file that were not scored as they are.
    """

    metrics: dict[str, float]
    per_agent: pd.DataFrame
    per_scene: pd.DataFrame
    metric_columns: tuple[str, ...]
    detail_columns: tuple[str, ...] = ()
    rules: Rules = Rules()
    label: str = ""
    agents: str = "scored"
    joint: bool = False
    on_training_split: bool = False
    scenes: DataSpec = DataSpec()
    num_targets: int = 0
    findings: Sequence[Finding] = ()

    @property
    def table(self) -> pd.DataFrame:
        """The metrics as one row."""
        import pandas as pd

        return pd.DataFrame([self.metrics])

    @property
    def complete_futures(self) -> int:
        """The number of agents whose future is recorded at every step of the horizon."""
        return int((self.per_agent.future_steps == self.scenes.num_future).sum())

    @property
    def best_of(self) -> int:
        """The number of modes of the main metrics."""
        return self.rules.best_of or 6

    def headline(self) -> list[str]:
        """The main columns of tables."""
        best_of = self.best_of
        return ["minFDE1", f"minADE{best_of}", f"minFDE{best_of}", f"MR{best_of}"]
