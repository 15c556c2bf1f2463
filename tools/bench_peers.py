"""Latency of SE2Former and of the networks of two peers, side by side in one run, one thread.

    python tools/bench_peers.py --simpl SIMPL --emp EMP

SIMPL and EMP are folders of the repositories HKUST-Aerial-Robotics/SIMPL and a-pru/emp of GitHub.
Prints machine and versions, and a Markdown table: median / 99th percentile in milliseconds of the
networks alone. They take turns. Inputs of the peers are random numbers of the shapes that their
data sets make, and their weights are random, because neither changes the time.

- SIMPL has the config of its repository for Argoverse 1 (20 + 30 steps, width 128) and forecasts
  all agents. Its relations of pairs are an input, which is not timed.
- EMP-M has its config for Argoverse 2 (50 + 60 steps, width 128). It forecasts one agent with six
  modes, and the others with one.
- SE2Former forecasts all agents with six modes; "kept": the lanes were encoded before.
"""

import argparse
import fractions
import math
import platform
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.deploy.example_scene import example_scene
from trajformer.recipes.checkpoint import load_predictor

WEIGHTS = ("pretrained:se2former_argoverse1", "pretrained:se2former_argoverse1_fast")
SIZES = ((16, 150), (64, 500), (256, 500), (256, 2000))  # agents, lanes
MAX_PAIRS = 2_000_000  # of tokens: SIMPL stores five tensors with 128 or 384 numbers for each
WARM_UP = 2
Forecast = Callable[[], Any]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simpl", type=Path, help="folder of the repository SIMPL")
    parser.add_argument("--emp", type=Path, help="folder of the repository emp")
    parser.add_argument("--calls", type=int, default=20, help="timed calls of each network")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")

    peers: dict[str, Callable[[int, int], Forecast | None]] = {}
    if args.simpl:
        peers["SIMPL"] = simpl(args.simpl)
    if args.emp:
        peers["EMP-M"] = emp(args.emp)
    names: list[str] = []
    for agents, lanes in SIZES:
        forecasts = se2former(agents, lanes)
        for name, of_size in peers.items():
            forecast = of_size(agents, lanes)
            if forecast is not None:
                forecasts[name] = forecast
        if not names:
            names = list(forecasts)
            print("| agents, lanes | " + " | ".join(names) + " |")
            print("|" + " --- |" * (1 + len(names)))
        cells = measure(forecasts, args.calls)
        row = [f"{agents}, {lanes}", *[cells.get(name, "-") for name in names]]
        print("| " + " | ".join(row) + " |", flush=True)


def measure(forecasts: dict[str, Forecast], calls: int) -> dict[str, str]:
    """Median / 99th percentile in milliseconds of each forecast; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in forecasts}
    with torch.inference_mode():
        for turn in range(WARM_UP + calls):
            for name, forecast in forecasts.items():
                begin = time.perf_counter()
                forecast()
                if turn >= WARM_UP:
                    times[name].append(1e3 * (time.perf_counter() - begin))
    cells = {}
    for name, values in times.items():
        median, p99 = np.percentile(values, (50, 99))
        cells[name] = f"{median:.1f} / {p99:.1f}"
    return cells


def se2former(agents: int, lanes: int) -> dict[str, Forecast]:
    """Forecasts of a scene by both weights, with the lanes encoded and kept."""
    forecasts: dict[str, Forecast] = {}
    for weights in WEIGHTS:
        predictor = load_predictor(weights)
        model: Any = predictor.model.eval()
        scene = example_scene(predictor.trained_on, agents, lanes)
        # Lanes at any distance count, as for the peers.
        batch = BatchConfig(
            targets="all", map_radius_m=1e4, polyline_points=8, polyline_length_m=40
        )
        observation = collate([scene], batch).observation
        with torch.inference_mode():
            encoded = model.encode_map(observation)

        def kept(model: Any = model, observation: Any = observation, lanes: Any = encoded) -> Any:
            return model.forecast(observation, lanes, model.encode_agents(observation, lanes))

        name = "SE2Former, fast" if weights.endswith("fast") else "SE2Former"
        forecasts[name] = lambda model=model, observation=observation: model(observation)
        forecasts[f"{name}, kept"] = kept
    return forecasts


def simpl(folder: Path) -> Callable[[int, int], Forecast | None]:
    """SIMPL of its repository, for any numbers of agents and lanes."""
    fractions.gcd = math.gcd  # type: ignore[attr-defined]  # removed from Python in 3.9
    sys.path.insert(0, str(folder))
    config = import_module("config.simpl_cfg").AdvCfg().get_net_cfg()
    model = import_module("simpl.simpl").Simpl(config, torch.device("cpu")).eval()

    def of_size(agents: int, lanes: int) -> Forecast | None:
        tokens = agents + lanes
        if tokens**2 > MAX_PAIRS:
            return None
        relation = {"scene": torch.randn(5, tokens, tokens), "scene_mask": None}
        inputs = (
            torch.randn(agents, 3, 20),
            [torch.arange(agents)],
            torch.randn(lanes, 10, 10),
            [torch.arange(lanes)],
            [relation],
        )
        return lambda: model(inputs)

    return of_size


class _DropPath(nn.Identity):
    """DropPath of timm in evaluation."""


def emp(folder: Path) -> Callable[[int, int], Forecast | None]:
    """EMP-M of its repository, for any numbers of agents and lanes."""
    layers = ModuleType("timm.models.layers")
    layers.DropPath = _DropPath  # type: ignore[attr-defined]
    for name in ("timm", "timm.models"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules["timm.models.layers"] = layers
    sys.path.insert(0, str(folder))
    model = import_module("src.model.emp").EMP(decoder="mlp").eval()

    def of_size(agents: int, lanes: int) -> Forecast | None:
        history, future, points = 50, 60, 20
        inputs = {
            "x": torch.randn(1, agents, history, 2),
            "x_attr": torch.zeros(1, agents, 3, dtype=torch.int),
            "x_centers": torch.randn(1, agents, 2),
            "x_angles": torch.randn(1, agents, history + future),
            "x_velocity_diff": torch.randn(1, agents, history),
            "x_padding_mask": torch.zeros(1, agents, history + future, dtype=torch.bool),
            "x_key_padding_mask": torch.zeros(1, agents, dtype=torch.bool),
            "lane_positions": torch.randn(1, lanes, points, 2),
            "lane_centers": torch.randn(1, lanes, 2),
            "lane_angles": torch.randn(1, lanes),
            "lane_padding_mask": torch.zeros(1, lanes, points, dtype=torch.bool),
            "lane_key_padding_mask": torch.zeros(1, lanes, dtype=torch.bool),
        }
        return lambda: model(inputs)

    return of_size


if __name__ == "__main__":
    main()
