"""Traffic lights and agent sizes as inputs of SE2Former."""

from dataclasses import replace

import numpy as np
import torch
from support.models import SE2FORMER
from support.scenes import make_scene

from trajformer.data.batch import Observation, collate
from trajformer.models.se2former.model import SE2FormerConfig
from trajformer.scenes.scene import LightState, Scene
from trajformer.testing.models import check_model

SMALL = {"num_future": 12, "max_history": 10}


def lit_scene(state: LightState = LightState.RED, later: LightState | None = None) -> Scene:
    """A scene with sizes and a light at lane 0; `later` is its state after the present."""
    scene = make_scene(4)
    states = np.full((1, scene.num_steps), state, np.uint8)
    if later is not None:
        states[:, scene.num_history :] = later
    size = np.linspace(1.0, 5.0, 2 * scene.num_agents, dtype=np.float32).reshape(-1, 2)
    lights = {"light_lane": np.zeros(1, np.int32), "light_state": states}
    return replace(scene, agent_size=size, **lights).validate()


def test_batches_have_sizes_and_present_lights() -> None:
    scene = lit_scene(LightState.GREEN, later=LightState.RED)
    plain = make_scene(4, seed=1)
    o = collate([scene, plain]).observation
    rows = [scene.agent_id.index(name) for name in o.agent_id[0]]
    np.testing.assert_array_equal(o.agent_size[0, : len(rows)], scene.agent_size[rows])
    assert not o.agent_size[1].any()
    assert not o.polyline_light[1].any()
    # Pieces of the lit lane, and no others.
    lights = o.polyline_light[0]
    assert set(lights.tolist()) == {0, 1 + LightState.GREEN}
    piece = o.polyline[0][lights > 0]
    lane = torch.from_numpy(scene.polyline(0))
    assert torch.cdist(piece.flatten(0, 1), lane).amin(1).max() < 5.0


def forecast(observation: Observation, **options: bool) -> torch.Tensor:
    torch.manual_seed(0)
    model = SE2FormerConfig(**SMALL, **options).build().eval()
    with torch.no_grad():
        return model(observation).position


def test_options_decide_whether_lights_and_sizes_are_inputs() -> None:
    red = collate([lit_scene()]).observation
    green = collate([lit_scene(LightState.GREEN)]).observation
    later = collate([lit_scene(later=LightState.GREEN)]).observation
    wide = replace(red, agent_size=red.agent_size * 2)
    assert torch.equal(forecast(red), forecast(green))
    assert torch.equal(forecast(red), forecast(wide))
    both = {"lights": True, "sizes": True}
    assert not torch.equal(forecast(red, **both), forecast(green, **both))
    assert not torch.equal(forecast(red, **both), forecast(wide, **both))
    assert torch.equal(forecast(red, **both), forecast(later, **both))  # no leak of the future


def test_unknown_sizes_and_lights_are_marked() -> None:
    """A scene without sizes differs from one with sizes near zero, no light from an unknown one."""
    o = collate([lit_scene(LightState.UNKNOWN)]).observation
    both = {"lights": True, "sizes": True}
    tiny = replace(o, agent_size=torch.full_like(o.agent_size, 1e-6))
    none = replace(o, agent_size=torch.zeros_like(o.agent_size))
    assert not torch.allclose(forecast(tiny, **both), forecast(none, **both))
    dark = replace(o, polyline_light=torch.zeros_like(o.polyline_light))
    assert not torch.allclose(forecast(o, **both), forecast(dark, **both))


def test_the_model_contract_holds_with_lights_and_sizes() -> None:
    check_model(replace(SE2FORMER, lights=True, sizes=True))
