"""Errors of the estimates of velocity and heading, on scenes with recorded ones.

    python tools/research/check_estimates.py STORE SPLIT [SPLIT ...] [--noise]

STORE has recorded headings and velocities, for example those of Argoverse 2. The estimates see the
positions only, with --noise as noisy as those of Argoverse 1. They are compared every half a second
from the third second of each scene, for vehicles. The table has the median and the 95th percentile
of the errors in m/s and degrees, and the fraction of headings with an error over 30 degrees.
"Parked" vehicles have never moved by 1 m in the scene: their heading follows a lane, or is 0.
"""

import argparse
from typing import NamedTuple

import numpy as np

from trajformer.scenes.geometry import wrap
from trajformer.scenes.kinematics import estimate_motion
from trajformer.scenes.lane_heading import face_along_lanes
from trajformer.scenes.scene import AgentKind, Scene
from trajformer.scenes.store import SceneStore
from trajformer.scenes.vector_map import VectorMap

# Standard deviations of the noise of Argoverse 1: 10, 50 and 90 % of the tracks are below .03, .09
# and .27 m. Part of it is the same in successive steps.
MEDIAN_NOISE_M = 0.09
LOG_SPREAD = 0.9
CORRELATION = 0.3
BEFORE_S = 1.5  # a phase is defined by the speeds now and at this time before
VEHICLES = (AgentKind.VEHICLE, AgentKind.BUS, AgentKind.MOTORCYCLIST)


class Errors(NamedTuple):
    """Errors of n compared steps: velocity in m/s, heading in degrees, phase as text."""

    velocity: np.ndarray
    heading: np.ndarray
    phase: np.ndarray


def add_noise(position: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions [A, T, 2] with noise as in Argoverse 1."""
    num_agents, num_steps, _ = position.shape
    sigma = MEDIAN_NOISE_M * np.exp(LOG_SPREAD * rng.normal(size=(num_agents, 1)))
    noise = rng.normal(size=position.shape)
    for step in range(1, num_steps):
        innovation = np.sqrt(1 - CORRELATION**2) * noise[:, step]
        noise[:, step] = CORRELATION * noise[:, step - 1] + innovation
    return position + sigma[..., None] * noise


def phases(velocity: np.ndarray, valid: np.ndarray, period_s: float) -> np.ndarray:
    """Phase of motion [A, T] of agents with recorded velocity [A, T, 2], "" for other steps."""
    speed = np.linalg.norm(velocity, axis=-1)
    steps = round(BEFORE_S / period_s)
    before = np.full(speed.shape, np.nan)
    before[:, steps:] = np.where(valid[:, :-steps], speed[:, :-steps], np.nan)
    path = np.where(speed > 0.5, speed, 0.0).cumsum(1) * period_s
    is_standing = (speed < 0.2) & (before < 0.2)
    cases = {
        "starting": (before < 0.3) & (speed > 0.7),
        "braking": (before > 2) & (speed < before - 2) & (speed >= 0.3),
        "stopped": (before > 1) & (speed < 0.3),
        "standing": is_standing & (path >= 3),
        "parked": is_standing & (path < 1),
        "moving": speed > 1,
    }
    phase = np.select(list(cases.values()), list(cases), "")
    return np.where(valid & ~np.isnan(before), phase, "")


def compare(scene: Scene, rng: np.random.Generator | None) -> Errors:
    """Errors of the estimates in a scene; positions have noise if `rng` is given."""
    is_vehicle = np.isin(scene.agent_kind, VEHICLES)
    position = scene.position[is_vehicle].astype(np.float64)
    valid = scene.valid[is_vehicle]
    if rng is not None:
        position = add_noise(position, rng)
    motion = estimate_motion(position, valid, scene.num_history, scene.period_s)
    lanes = VectorMap(
        polyline_id=scene.polyline_id,
        polyline_kind=scene.polyline_kind,
        polyline_flags=scene.polyline_flags,
        polyline_offset=scene.polyline_offset,
        point=scene.point.astype(np.float64),
        edge=scene.edge,
        edge_kind=scene.edge_kind,
    )
    everyone = np.ones(len(valid), bool)
    heading = face_along_lanes(motion.heading, motion.length, position, valid, everyone, lanes)

    velocity_error = np.linalg.norm(motion.velocity - scene.velocity[is_vehicle], axis=-1)
    heading_error = np.abs(np.degrees(wrap(heading - scene.heading[is_vehicle])))
    phase = phases(scene.velocity[is_vehicle], valid, scene.period_s)
    first = round(2 / scene.period_s)
    every = max(1, round(0.5 / scene.period_s))
    phase[:, :first] = ""
    is_compared = phase != ""
    is_compared &= np.arange(scene.num_steps) % every == 0
    return Errors(velocity_error[is_compared], heading_error[is_compared], phase[is_compared])


def table(errors: Errors) -> str:
    """Markdown table, one row for each phase."""
    lines = ["| phase | steps | velocity | | heading | | over 30 |", "|" + "---|" * 7]
    for phase in ("moving", "braking", "stopped", "standing", "starting", "parked"):
        rows = errors.phase == phase
        count = int(rows.sum())
        if not count:
            continue
        velocity = np.percentile(errors.velocity[rows], (50, 95))
        heading = np.percentile(errors.heading[rows], (50, 95))
        wrong = (errors.heading[rows] > 30).mean()
        lines.append(
            f"| {phase} | {count} | {velocity[0]:.2f} | {velocity[1]:.2f} "
            f"| {heading[0]:.1f} | {heading[1]:.1f} | {wrong:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table of a store."""
    parser = argparse.ArgumentParser(description="Errors of estimated velocities and headings.")
    parser.add_argument("store")
    parser.add_argument("splits", nargs="+")
    parser.add_argument("--noise", action="store_true", help="add noise as in Argoverse 1")
    args = parser.parse_args()
    rng = None
    if args.noise:
        rng = np.random.default_rng(0)
    results = []
    for split in args.splits:
        for scene in SceneStore(args.store, split):
            results.append(compare(scene, rng))
    columns = zip(*results, strict=True)
    print(table(Errors(*map(np.concatenate, columns))))


if __name__ == "__main__":
    main()
