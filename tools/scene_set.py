"""Recall and precision of a scene set: the share of futures that it finds, and the share of its predictions that are true.

    python tools/scene_set.py --checkpoint RUN/last.ckpt --store STORE [--split val] [--targets all]

A query with at least a given probability predicts its most probable mode. There is one line per threshold: "no agent" has a
smaller weight in training, so that 0.5 is not a natural threshold. A prediction hits at most one future, if it ends within 2 m
of it. The baseline is constant velocity with one prediction per target.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from trajformer.data.loading import SceneDataset
from trajformer.evaluation.metrics.scene_set import SceneSetMetrics
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.models.scene_set.loss import SceneTrajectories
from trajformer.models.scene_set.model import SceneSet
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.store import SceneStore


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--split", default="val")
    parser.add_argument("--targets", default="all", choices=("all", "scored", "focal"))
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.5, 0.6, 0.7, 0.8, 0.9], help="smallest probabilities")
    args = parser.parse_args()
    predictor = load_predictor(args.checkpoint, targets=args.targets)
    if not isinstance(predictor.model, SceneSet):
        parser.error(f"{args.checkpoint} is not a scene set")
    data = SceneDataset(SceneStore(args.store, args.split), predictor.batch)
    metrics = {f"scene set, {threshold:.2f}": SceneSetMetrics(threshold) for threshold in args.thresholds}
    baseline = SceneSetMetrics()
    for start in range(0, len(data), 32):
        batch = data[range(start, min(start + 32, len(data)))]
        observation, truth = batch.observation, batch.truth
        trajectories = predictor.model.trajectories(observation)
        for metric in metrics.values():
            metric.update(trajectories, truth.position, truth.valid)
        straight = ConstantVelocity()(observation).position
        logit = torch.where(observation.target_mask, 1.0, -1.0)
        trajectories = SceneTrajectories(straight, logit, torch.zeros_like(straight[..., 0, 0]))
        baseline.update(trajectories, truth.position, truth.valid)
    for name, metric in (metrics | {"constant velocity": baseline}).items():
        values = metric.compute()
        print(f"{name:18s} futures {values['num_futures']:6.0f}  predictions {values['num_claims']:6.0f}  "
              f"recall {values['recall']:.3f}  precision {values['precision']:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
