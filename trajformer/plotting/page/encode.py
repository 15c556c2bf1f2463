"""A scene with its forecasts as compressed bytes, and its line in the list of scenes.

Lengths are whole centimetres (hundredths of pixels for scenes in pixels) relative to the scene's
`origin`, headings 1/1024 of a turn, probabilities multiples of 0.0001. Errors are computed before
the rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trajformer.evaluation.attention import SceneAttention
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.plotting.colors import agent_colors
from trajformer.plotting.crowd import is_crowd
from trajformer.plotting.forecasts import (
    AgentForecast,
    main_forecast,
    match_forecasts,
    track_errors,
)
from trajformer.plotting.page.attention import encode_attention
from trajformer.plotting.page.streams import differences, pack, quantize
from trajformer.plotting.recorded import agent_sizes
from trajformer.plotting.style import AGENT_COLORS
from trajformer.scenes.scene import AgentRole, Scene

LENGTH_STEP = 0.01  # metres
HEADING_STEPS = 1024  # in a turn
PROBABILITY_STEP = 0.0001
ERROR_DIGITS = 3


@dataclass(frozen=True)
class EncodedScene:
    """Bytes of a scene for `decodeScene` of the page, and plain values for the list of scenes."""

    content: bytes
    summary: dict[str, Any]


def encode_scene(
    scene: Scene,
    files: Sequence[Sequence[TrackForecast]] = (),
    attention: SceneAttention | None = None,
    *,
    notice: str = "",
) -> EncodedScene:
    """Encode a scene with the forecasts of several files, and a line of text to show above it.

    The attention belongs to the model of one of the forecasts.

    Invalid steps, polylines with NaN or infinity, and agents that are never seen have no
    coordinates in the result. Raises TrajformerError: a forecast does not fit the scene
    (`match_forecasts`).
    """
    matched = [match_forecasts(scene, forecasts) for forecasts in files]
    header: dict[str, Any] = {
        "id": scene.scene_id,
        "source": scene.source,
        "split": scene.split,
        "city": scene.city,
        "unit": scene.unit,
        "period": scene.period_s,
        "history": scene.num_history,
        "steps": scene.num_steps,
        "future": scene.num_future,
        "origin": scene.origin.tolist(),
        "agentId": list(scene.agent_id),
        "sized": bool(len(scene.agent_size)),
        "manoeuvre": _manoeuvres(scene),
    }
    streams = {**_agent_streams(scene), **_map_streams(scene)}
    header["forecasts"] = []
    for number, forecasts in enumerate(matched):
        header["forecasts"].append(_forecast_header(scene, forecasts))
        streams |= _forecast_streams(forecasts, f"forecast{number}")
    header["color"] = _colors(scene, matched)
    header["attention"] = None
    if attention is not None:
        header["attention"], shares = encode_attention(scene, attention)
        streams |= shares
    summary = _summary(scene, matched, header["manoeuvre"])
    header["judged"] = summary["judged"]
    header["notice"] = notice
    return EncodedScene(pack(header, streams), summary)


def summarize_scene(scene: Scene, files: Sequence[Sequence[TrackForecast]]) -> dict[str, Any]:
    """The line of a scene in the list, as in `EncodedScene`; raises as `encode_scene`."""
    matched = [match_forecasts(scene, forecasts) for forecasts in files]
    return _summary(scene, matched, _manoeuvres(scene))


def _agent_streams(scene: Scene) -> dict[str, np.ndarray]:
    finite = np.isfinite(scene.position).all(-1) & np.isfinite(scene.heading)
    valid = scene.valid & finite
    num_steps = valid.sum(1)
    angle = quantize(scene.heading[valid], 2 * np.pi / HEADING_STEPS)
    turn = differences(angle, num_steps, 1)
    half = HEADING_STEPS // 2
    turn = (turn + half) % HEADING_STEPS - half
    sizes = agent_sizes(scene, list(range(scene.num_agents)))
    streams = {
        "kind": scene.agent_kind,
        "role": scene.agent_role,
        "length": quantize(sizes[:, 0], LENGTH_STEP),
        "width": quantize(sizes[:, 1], LENGTH_STEP),
        "valid": np.packbits(valid.reshape(-1)),
    }
    for axis, name in enumerate("xy"):
        place = quantize(scene.position[..., axis][valid], LENGTH_STEP)
        streams[name] = differences(place, num_steps, 2)
    streams["heading"] = turn
    return streams


def _map_streams(scene: Scene) -> dict[str, np.ndarray]:
    sizes = np.diff(scene.polyline_offset).astype(np.int64)
    finite = np.isfinite(scene.point).all(-1)
    owner = np.repeat(np.arange(scene.num_polylines), sizes)
    broken = np.bincount(owner[~finite], minlength=scene.num_polylines) > 0
    sizes[broken] = 0
    points = scene.point[~broken[owner]]
    streams = {
        "lineKind": scene.polyline_kind,
        "lineFlags": scene.polyline_flags,
        "lineSize": sizes,
    }
    for axis, name in enumerate(("lineX", "lineY")):
        streams[name] = differences(quantize(points[:, axis], LENGTH_STEP), sizes, 2)
    lights = scene.light_state
    streams["lightLane"] = scene.light_lane
    streams["lightState"] = differences(
        lights.reshape(-1).astype(np.int64), np.full(len(lights), scene.num_steps), 1
    )
    return streams


def _forecast_header(scene: Scene, forecasts: Sequence[AgentForecast]) -> dict[str, Any]:
    errors = [_errors(scene, forecast) for forecast in forecasts]
    return {
        "agent": [forecast.agent for forecast in forecasts],
        "modes": [len(forecast.probability) for forecast in forecasts],
        "joint": is_joint(forecasts),
        "ade": [ade for ade, _ in errors],
        "fde": [fde for _, fde in errors],
    }


def _forecast_streams(forecasts: Sequence[AgentForecast], name: str) -> dict[str, np.ndarray]:
    """Modes of all agents in this order: positions and probabilities."""
    streams: dict[str, list[np.ndarray]] = {"Probability": [], "X": [], "Y": []}
    for forecast in forecasts:
        streams["Probability"].append(quantize(forecast.probability, PROBABILITY_STEP))
        num_modes, num_steps, _ = forecast.position.shape
        lengths = np.full(num_modes, num_steps)
        for axis, letter in enumerate("XY"):
            place = quantize(forecast.position[..., axis].reshape(-1), LENGTH_STEP)
            streams[letter].append(differences(place, lengths, 2))
    joined = {}
    for part, values in streams.items():
        joined[name + part] = np.concatenate([np.zeros(0, np.int64), *values])
    return joined


def is_joint(forecasts: Sequence[AgentForecast]) -> bool:
    """True if mode k of all agents is one joint future: they have the same probabilities.

    Files with tied probabilities have no defined order of modes, so they are not joint.
    """
    if len(forecasts) < 2:
        return False
    first = forecasts[0].probability
    if (np.diff(first) == 0).any():
        return False
    return all(np.array_equal(first, other.probability) for other in forecasts)


def _errors(scene: Scene, forecast: AgentForecast) -> tuple[float | None, float | None]:
    """minADE and minFDE in metres, or None if the last future step is not recorded."""
    known = track_errors(scene, [forecast])
    if not known or not np.isfinite(known[0]).all():
        return None, None
    ade, fde = known[0]
    return round(ade, ERROR_DIGITS), round(fde, ERROR_DIGITS)


def _manoeuvres(scene: Scene) -> list[int | None]:
    """The `Manoeuvre` of each agent with a recorded end that is seen in the last observed step."""
    if scene.num_steps == scene.num_history:
        return [None] * scene.num_agents
    now = scene.num_history - 1
    pose = np.concatenate([scene.position[:, now], scene.heading[:, now, None]], -1)
    future = torch.tensor(scene.position[None, :, now + 1 :])
    valid = torch.tensor(scene.valid[None, :, now + 1 :])
    kinds, known = manoeuvres(future, valid, torch.tensor(pose[None]), scene.period_s)
    labels: list[int | None] = [int(kind) for kind in kinds[0]]
    has_none = ~(known[0].numpy() & scene.valid[:, now])
    for agent in np.flatnonzero(has_none).tolist():
        labels[agent] = None
    return labels


def _colors(scene: Scene, files: Sequence[Sequence[AgentForecast]]) -> list[int] | None:
    """For crowds, the index in `AGENT_COLORS` of each agent, -1 without a forecast."""
    if not is_crowd(scene):
        return None
    forecasts = [forecast for file in files for forecast in file]
    chosen = agent_colors(scene, forecasts)
    colors = [-1] * scene.num_agents
    for agent, color in chosen.items():
        colors[agent] = AGENT_COLORS.index(color)
    return colors


def _summary(
    scene: Scene, files: Sequence[Sequence[AgentForecast]], kinds: Sequence[int | None]
) -> dict[str, Any]:
    """The line of the list: errors by file, and types and manoeuvres of the agents they are for.

    These are the main agent (`main_forecast`), or all agents with a forecast, or the agents that
    the data set scores.
    """
    judged: list[int] = []
    errors: list[list[float] | None] = []
    for forecasts in files:
        main = main_forecast(scene, forecasts)
        shown = list(forecasts)
        if main is not None:
            shown = [main]
        judged += [forecast.agent for forecast in shown]
        errors.append(_mean_errors(scene, shown))
    if not judged:
        judged = _targets(scene)
    agents = sorted(set(judged))
    known_kinds = {kinds[agent] for agent in agents} - {None}
    return {
        "id": scene.scene_id,
        "city": scene.city,
        "numAgents": scene.num_agents,
        "judged": agents,
        "kinds": sorted({int(scene.agent_kind[agent]) for agent in agents}),
        "manoeuvres": sorted(int(kind) for kind in known_kinds if kind is not None),
        "errors": errors,
    }


def _mean_errors(scene: Scene, forecasts: Sequence[AgentForecast]) -> list[float] | None:
    known = track_errors(scene, forecasts)
    if not known:
        return None
    mean = np.mean(known, 0)
    if not np.isfinite(mean).all():
        return None
    return [round(float(value), ERROR_DIGITS) for value in mean]


def _targets(scene: Scene) -> list[int]:
    """The focal agent, or all scored agents."""
    focal = np.flatnonzero(scene.agent_role == AgentRole.FOCAL)
    scored = np.flatnonzero(scene.agent_role == AgentRole.SCORED)
    chosen = focal if len(focal) else scored
    return [int(agent) for agent in chosen]


def manoeuvre_labels() -> Mapping[int, str]:
    """Names of manoeuvres by number, for the filters of the page."""
    return {int(kind): kind.label for kind in Manoeuvre}
