"""Recall and precision of a scene set: how many futures it finds, and how many of its claims are true.

    python tools/scene_set.py --checkpoint RUN/last.ckpt --store STORE [--split val] [--targets all]

A claim is a query with at least a probability, and its most probable mode; there is a line for each of several, for nobody's
weigh less in training and a half is no natural bound. Each claim hits at most one future, by ending within 2 m of it. Beside them
stands constant velocity, one claim for each target: what it takes to know where everybody is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from trajformer.data.loading import SceneDataset
from trajformer.evaluation.evaluate import load_predictor
from trajformer.evaluation.metrics.scene_set import SceneSetMetrics
from trajformer.models import SceneSet
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.models.scene_set.model import SceneTrajectories
from trajformer.scenes.store import SceneStore


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--targets", default="all", choices=("all", "scored", "focal"))
    parser.add_argument("--least", type=float, nargs="+", default=[0.5, 0.6, 0.7, 0.8, 0.9], help="probabilities of a claim")
    args = parser.parse_args()
    predictor = load_predictor(args.checkpoint, torch.device("cpu"), args.targets)
    if not isinstance(predictor.model, SceneSet):
        parser.error(f"{args.checkpoint} is no scene set")
    data = SceneDataset(SceneStore(args.store, args.split), predictor.batch)
    found, straight = {least: SceneSetMetrics(least) for least in args.least}, SceneSetMetrics()
    for start in range(0, len(data), 32):
        batch = data[range(start, min(start + 32, len(data)))]
        truth = batch.target, batch.target_valid
        trajectories = predictor.model.trajectories(batch)
        for metric in found.values():
            metric.update(trajectories, *truth)
        guess, claim = ConstantVelocity()(batch).position, torch.where(batch.target_mask, 1.0, -1.0)
        straight.update(SceneTrajectories(guess, claim, torch.zeros_like(guess[..., 0, 0])), *truth)
    lines = [(f"scene set, {least:.2f}", metric) for least, metric in found.items()]
    for name, metric in (*lines, ("constant velocity", straight)):
        values = metric.compute()
        print(f"{name:18s} futures {values['num_futures']:6.0f}  claims {values['num_claims']:6.0f}  "
              f"recall {values['recall']:.3f}  precision {values['precision']:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
