"""Measure the rules of SE2Former's single forecast, without training.

    python tools/research/single_forecast_rules.py --checkpoint pretrained:se2former_argoverse1 \
        --store stores/av1 --split val_official

The network runs once. Variants of the last step, from its paths and scores to modes and
probabilities, are scored on the same agents. A row has the metrics of a variant and, in percent,
their differences from the rules in use with a paired 95 % interval, a bootstrap over scenes. A
variant is better if its differences are negative. `--agents all` shows what the rule for agents at
rest does: few benchmarks score agents that stay.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trajformer.cli.status import exit_status
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.displacement import agent_errors, best_end
from trajformer.models.se2former.model import SE2Former
from trajformer.models.se2former.paths import PathProposals
from trajformer.models.se2former.single_forecast import (
    final_modes,
    make_most_probable,
    order_nested,
)
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.store import SceneStore

METRICS = ("minFDE1", "minFDE5", "minFDE6", "minFDE10", "brier_minFDE6", "minADE6", "MR6")
BATCH_SIZE = 32
SAMPLES = 1000  # of the bootstrap
IN_USE = "rules in use"

Modes = tuple[Tensor, Tensor]  # positions [B, S, K, F, 2] and logits [B, S, K]
# from proposals, temperature and the number of nested modes
Rule = Callable[[PathProposals, Tensor, int], Modes]


def without_rest(proposals: PathProposals, temperature: Tensor, nested: int) -> Modes:
    """Agents at rest have no special rule."""
    moving = torch.ones_like(proposals.motion_scale)
    return final_modes(replace(proposals, motion_scale=moving), temperature, nested)


def without_order(proposals: PathProposals, temperature: Tensor, nested: int) -> Modes:
    """Nested modes are not the most probable ones."""
    return final_modes(proposals, temperature, 0)


def highest_score(proposals: PathProposals, temperature: Tensor, nested: int) -> Modes:
    """The single forecast is the mode with the highest score."""
    logit = proposals.logit / temperature
    if nested:
        logit = order_nested(logit, nested)
    return proposals.modes, logit


def moved_to_mean(proposals: PathProposals, temperature: Tensor, nested: int) -> Modes:
    """The most probable mode of an agent that moves is half the way to the mean of the modes."""
    modes, logit = final_modes(proposals, temperature, nested)
    mean = _mean_path(proposals, temperature)
    chosen = logit.argmax(-1, keepdim=True)
    return _moved(modes, mean, chosen, proposals.motion_scale / 2), logit


def median_path(proposals: PathProposals, temperature: Tensor, nested: int) -> Modes:
    """The mode that ends nearest to the median path becomes the median path."""
    return _nearest_moves(proposals, temperature, nested, proposals.median, 1.0)


def middle(proposals: PathProposals, temperature: Tensor, nested: int) -> Modes:
    """The mode nearest to the middle of mean and median moves two thirds of the way to it."""
    path = proposals.median.lerp(_mean_path(proposals, temperature), 0.5)
    return _nearest_moves(proposals, temperature, nested, path, 2 / 3)


RULES: dict[str, Rule] = {
    IN_USE: final_modes,
    "without rest": without_rest,
    "without order of nested modes": without_order,
    "highest score": highest_score,
    "half the way to the mean": moved_to_mean,
    "median path": median_path,
    "middle of mean and median": middle,
}


def _mean_path(proposals: PathProposals, temperature: Tensor) -> Tensor:
    """Mean [B, S, 1, F, 2] of the modes, weighted by probability."""
    probability = (proposals.logit / temperature).softmax(-1)
    return (probability[..., None, None] * proposals.modes).sum(2, keepdim=True)


def _nearest_moves(
    proposals: PathProposals, temperature: Tensor, nested: int, path: Tensor, fraction: float
) -> Modes:
    """The mode that ends nearest to a path [B, S, 1, F, 2] is chosen and moves towards it."""
    modes = proposals.modes
    candidates = modes[:, :, :nested] if nested else modes
    gap = (candidates[..., -1, :] - path[..., -1, :]).norm(dim=-1)
    chosen = gap.argmin(-1, keepdim=True)
    logit = make_most_probable(proposals.logit / temperature, chosen)
    if nested:
        logit = order_nested(logit, nested)
    return _moved(modes, path, chosen, fraction), logit


def _moved(modes: Tensor, path: Tensor, chosen: Tensor, fraction: Tensor | float) -> Tensor:
    """Modes of which the one with the index `chosen` [B, S, 1] moved a fraction of the way."""
    is_chosen = torch.arange(modes.shape[2]) == chosen
    return modes.lerp(path, is_chosen[..., None, None].float() * fraction)


def scores(forecast: Forecast, batch: SceneBatch) -> np.ndarray:
    """The `METRICS` [N, number of metrics] of the agents with a known end."""
    valid = batch.truth.valid
    errors = agent_errors(forecast, batch.truth.position, valid)
    values: dict[str, Tensor] = {}
    for k in (1, 5, 6, 10):
        best = best_end(errors.most_probable(k))
        values |= {f"{name}{k}": value[valid[..., -1]] for name, value in best.items()}
    return torch.stack([values[name] for name in METRICS], -1).numpy()


@torch.inference_mode()
def measure(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Metrics [N, number of metrics] of each rule, and the scene [N] of each agent.

    Raises TrajformerError: not a marginal SE2Former, and the errors of store and checkpoint.
    """
    predictor = load_predictor(args.checkpoint, torch.device("cpu"), args.agents)
    model = predictor.model
    if not isinstance(model, SE2Former) or model.joint:
        raise TrajformerError(f"{args.checkpoint}: is not an SE2Former with marginal modes")
    scenes = SceneStore(args.store, args.split)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in RULES}
    scene: list[Tensor] = []
    for start in range(0, len(scenes), BATCH_SIZE):
        stop = min(start + BATCH_SIZE, len(scenes))
        batch = collate([scenes[index] for index in range(start, stop)], predictor.batch)
        proposals = model.propose(batch.observation)
        pose = batch.observation.pose[:, : batch.observation.num_targets]
        for name, rule in RULES.items():
            modes, logit = rule(proposals, model.temperature.exp(), model.config.nested)
            parts[name].append(scores(Forecast(modes, logit, Frame.AGENT, pose), batch))
        scene.append(start + batch.truth.valid[..., -1].nonzero()[:, 0])
    values = {name: np.concatenate(part) for name, part in parts.items()}
    return values, torch.cat(scene).numpy()


def interval(value: np.ndarray, reference: np.ndarray, scene: np.ndarray) -> tuple[float, ...]:
    """Difference of the means of two columns [N] in percent, and its 95 % interval."""
    difference = np.bincount(scene, value - reference)
    total = np.bincount(scene, reference)
    size = len(total)
    drawn = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), SAMPLES)
    percent = 100 * (drawn @ difference) / (drawn @ total)
    low, high = np.percentile(percent, [2.5, 97.5])
    return 100 * difference.sum() / total.sum(), low, high


def run(args: argparse.Namespace) -> None:
    """Measure and print the rows."""
    torch.set_num_threads(1)
    values, scene = measure(args)
    print(f"{len(scene):,} agents ({args.agents})")
    for name, value in values.items():
        print(name)
        for column, metric in enumerate(METRICS):
            percent, low, high = interval(value[:, column], values[IN_USE][:, column], scene)
            change = f"{percent:+5.1f} % ({low:+.1f} to {high:+.1f})"
            print(f"    {metric:14} {value[:, column].mean():7.3f}  {change}")


def main() -> int:
    """Run the command line; returns 1 after a failure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--agents", choices=("scored", "focal", "all"), default="scored")
    return exit_status("single_forecast_rules", lambda: run(parser.parse_args()), "")


if __name__ == "__main__":
    sys.exit(main())
