"""`trajformer stream`: replay recordings as live tracks."""

import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trajformer.cli.files import check_outputs
from trajformer.cli.forecasters import CHECKPOINT_HELP, add_threads, set_threads
from trajformer.cli.parsing import Parser, add_overwrite, new_parser
from trajformer.cli.replay import Recording, recordings_of_logs, recordings_of_store
from trajformer.cli.splits import SPLIT_HELP, default_split
from trajformer.errors import TrajformerError
from trajformer.scenes.spec import DataSpec, check_scenes

if TYPE_CHECKING:
    from trajformer.deploy.predicted import PredictedObjects
    from trajformer.deploy.stream import OnlineForecaster
    from trajformer.evaluation.forecast_file import TrackForecast

ROLLING = 1_000  # forecasts in the printed minFDE
REPORT_TICKS = 100  # between two lines


def parser() -> Parser:
    """STORE_OR_LOGS --checkpoint CKPT [--realtime] [--out FORECASTS.parquet]."""
    made = new_parser(
        "Replay recordings as live tracks: the scenes of a store, or the sensor logs of Argoverse "
        "2. Each step is an update and a forecast of all agents. Prints agents, latency, and the "
        "minFDE of the last forecasts whose horizon is recorded."
    )
    made.add_argument(
        "recordings", type=Path, help="store of `trajformer preprocess`, or folder of sensor logs"
    )
    made.add_argument("--split", help=SPLIT_HELP)
    made.add_argument("--checkpoint", type=Path, required=True, help=CHECKPOINT_HELP)
    made.add_argument(
        "--realtime", action="store_true", help="wait for the time of each step, as a vehicle does"
    )
    made.add_argument(
        "--out", type=Path, help="parquet file with the forecasts of complete histories"
    )
    add_threads(made)
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Replay, print, and write the file."""
    from trajformer.deploy.stream import OnlineForecaster
    from trajformer.evaluation.forecast_file import write_forecasts

    if args.out is not None:
        check_outputs(args, out="parquet")
    args.batch_size = 1  # one thread, if no other number is given
    set_threads(args)
    forecaster = OnlineForecaster(args.checkpoint)
    replay = Replay(forecaster, realtime=args.realtime)
    forecasts = replay.run(_recordings(args, forecaster))
    if args.out is None:
        for _ in forecasts:
            pass
    else:
        period_s, num_history, num_future = forecaster.clock
        spec = DataSpec(unit="m", period_s=period_s, num_history=num_history, num_future=num_future)
        count = write_forecasts(args.out, forecasts, spec)
        print(f"{args.out}: forecasts of {count} agents")
    print(replay.summary())


def _recordings(args: Namespace, forecaster: "OnlineForecaster") -> Iterator[Recording]:
    """The recordings of a store or of logs."""
    from trajformer.scenes.store import SceneStore

    root = args.recordings
    if not any(root.glob("*/*.arrow")):
        return recordings_of_logs(root)
    scenes = SceneStore(root, args.split or default_split(root))
    if len(scenes):
        period_s, num_history, num_future = forecaster.clock
        model = DataSpec(
            unit="m", period_s=period_s, num_history=num_history, num_future=num_future
        )
        check_scenes(DataSpec.of(scenes[0]), model, root)
    return recordings_of_store(scenes)


class Tick(NamedTuple):
    """One update and forecast."""

    step: int
    latency_ms: float
    forecasts: "PredictedObjects"


class Replay:
    """Plays recordings and measures forecasts.

    Args:
        forecaster: the model.
        realtime: wait for the time of each step.
    """

    def __init__(self, forecaster: "OnlineForecaster", realtime: bool = False) -> None:
        self.forecaster = forecaster
        self.realtime = realtime
        self.latency_ms: list[float] = []
        self.agents: deque[int] = deque(maxlen=REPORT_TICKS)
        self.errors: deque[float] = deque(maxlen=ROLLING)  # minFDE of single agents
        self.num_late = 0  # ticks that took longer than a step
        self._recordings = 0

    def run(self, recordings: Iterator[Recording]) -> Iterator["TrackForecast"]:
        """The forecasts of all agents at each step with a complete history."""
        _, num_history, _ = self.forecaster.clock
        for recording in recordings:
            self._recordings += 1
            self.forecaster.reset()
            self.forecaster.set_map(recording.lanes)
            is_log = recording.num_observed > num_history
            for tick in self._ticks(recording):
                self.agents.append(len(tick.forecasts))
                self.latency_ms.append(tick.latency_ms)
                if len(self.latency_ms) % REPORT_TICKS == 0:
                    print(self._line(recording.name), flush=True)
                first = tick.step - (num_history - 1)
                if first < 0:
                    continue
                self._score(recording, tick)
                name = f"{recording.name}-{first:03d}" if is_log else recording.name
                yield from _track_forecasts(name, tick.forecasts)
        if not self._recordings:
            raise TrajformerError("no recording to replay")

    def _ticks(self, recording: Recording) -> Iterator[Tick]:
        start = time.perf_counter()
        for step in range(recording.num_observed):
            tracks = recording.tracks(step)
            if self.realtime:
                wait_s = start + step * recording.period_s - time.perf_counter()
                time.sleep(max(wait_s, 0.0))
                self.num_late += wait_s < -recording.period_s
            begin = time.perf_counter()
            self.forecaster.update(step * recording.period_s, tracks)
            forecasts = self.forecaster.forecast()
            latency_ms = 1e3 * (time.perf_counter() - begin)
            yield Tick(step, latency_ms, forecasts)

    def _score(self, recording: Recording, tick: Tick) -> None:
        """Add the end-point errors of the agents that are recorded at the horizon."""
        period_s, _, num_future = self.forecaster.clock
        end = tick.step + round(num_future * period_s / recording.period_s)
        if end >= recording.valid.shape[1]:
            return
        row_of = {name: row for row, name in enumerate(recording.agent_id)}
        forecasts = tick.forecasts
        for index, name in enumerate(forecasts.object_id):
            row = row_of[str(name)]
            if recording.valid[row, end]:
                offset = forecasts.position[index, :, -1] - recording.position[row, end]
                self.errors.append(float(np.hypot(offset[:, 0], offset[:, 1]).min()))

    def _line(self, name: str) -> str:
        recent = np.array(self.latency_ms[-REPORT_TICKS:])
        agents = np.mean(self.agents)
        text = f"{name}: {agents:.0f} agents, {np.median(recent):.1f} ms"
        if self.errors:
            text += f", minFDE {np.mean(self.errors):.2f} m (last {len(self.errors)} forecasts)"
        return text

    def summary(self) -> str:
        """One line on all ticks."""
        latency = np.array(self.latency_ms)
        median, p99 = np.percentile(latency, (50, 99))
        text = f"{len(latency)} updates of {self._recordings} recordings: "
        text += f"{median:.1f} ms, 99 % within {p99:.1f} ms"
        if self.errors:
            text += f"; minFDE {np.mean(self.errors):.2f} m (last {len(self.errors)} forecasts)"
        if self.num_late:
            text += f"; {self.num_late} updates began over a step late"
        return text


def _track_forecasts(name: str, forecasts: "PredictedObjects") -> Iterator["TrackForecast"]:
    from trajformer.evaluation.forecast_file import TrackForecast

    for index, track_id in enumerate(forecasts.object_id):
        confidence = forecasts.confidence[index]
        yield TrackForecast(name, str(track_id), confidence, forecasts.position[index])
