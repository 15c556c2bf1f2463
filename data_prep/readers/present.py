"""Values of tracks at the present, the last observed step, and the lights of a map."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trajformer.scenes.scene import AgentRole, Scene
from trajformer.scenes.vector_map import VectorMap


def size_at_present(size: np.ndarray, valid: np.ndarray, num_history: int) -> np.ndarray:
    """Size float32 [A, 2] at the last observed step of each agent, else at its first step.

    `size` is [A, T, 2], metres, and `valid` bool [A, T].
    """
    observed = valid[:, :num_history]
    last_observed = num_history - 1 - observed[:, ::-1].argmax(1)
    step = np.where(observed.any(1), last_observed, valid.argmax(1))
    return size[np.arange(len(step)), step].astype(np.float32)


def main_agent(role: np.ndarray, is_ego: np.ndarray, is_present: np.ndarray) -> int:
    """Index of the agent at the origin of a scene: the focal agent, else the ego car, else scored.

    Arguments are [A]: AgentRole, and bool.
    """
    rank = 3 * (role == AgentRole.FOCAL) + 2 * (is_ego & is_present)
    rank += role == AgentRole.SCORED
    return int(rank.argmax())


def with_lights(
    scene: Scene, lanes: VectorMap, light_lane: Sequence[int], light_state: np.ndarray
) -> Scene:
    """The scene with the traffic lights of its lanes, if it has any.

    `light_lane` are N values of `lanes.polyline_id`, `light_state` is uint8 [N, T].
    """
    polyline_of = {number: index for index, number in enumerate(lanes.polyline_id.tolist())}
    lights: list[int] = []
    polylines: list[int] = []
    for light, number in enumerate(light_lane):
        if number in polyline_of:
            lights.append(light)
            polylines.append(polyline_of[number])
    if not lights:
        return scene
    return replace(scene, light_lane=np.array(polylines, np.int32), light_state=light_state[lights])
