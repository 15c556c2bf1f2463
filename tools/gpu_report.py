"""Measure this package on a GPU: parity with the CPU, training throughput, latency, memory, kernels, reference tasks, loading.

    python tools/gpu_report.py --out R.json [--small] [--repeats N]

The report is expected to take less than ten minutes on one GPU (not measured). It needs neither data (it simulates traffic) nor
jsonargparse or av2. R.json is written after each table, so that an interrupted report keeps its tables. Tables are printed as
Markdown.
`--small` computes all tables with small sizes on the CPU. The exit status is 1 if the devices differ or a row failed.

Parity compares the forecast, the loss and the gradient of each model in full single precision, without dropout, for the same
weights and random numbers. Training steps include augmentation and the optimiser. "share of peak" relates the operations of
matrix products and attention to the fastest matrix product of this device in the same precision. "busy" is the time of all
kernels divided by the time of the step. Weights are random: they do not change the time.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from measure import environment, median_ms, peak_mb, reset_peak, training_step, write_json
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize
from trajformer.core.blocks import BlockConfig
from trajformer.data.augment import augment
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.loading import (
    EpochShuffle,
    RankSampler,
    SceneDataset,
    count_steps,
    make_loader,
)
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.model import Detr, DetrConfig
from trajformer.heads.translation.model import Transformer, TransformerConfig
from trajformer.heads.translation.task import token_loss
from trajformer.models.agentformer.sampler import AgentFormerSamplerConfig
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.recipes.choices import MODELS
from trajformer.recipes.names import LIBRARY, read_recipe
from trajformer.recipes.recipe import OptimConfig, TrainConfig
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

MAX_LOSS_ERROR, MAX_GRADIENT_ERROR = (
    1e-3,
    1e-2,
)  # relative; sums are in another order, and argmins may change near ties
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
KINDS = {
    "attention": ("flash", "fmha", "attention", "scaled_dot"),
    "matmul": ("gemm", "cutlass", "nvjet", "::mm", "addmm", "bmm"),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a report."""

    data: str = "argoverse2"  # the recipes
    models: tuple[str, ...] = (
        *MODELS,
        "mmtransformer_rts",
    )  # names of models or recipes without their data
    scenes: int = 256
    batch: int = 64
    latency: tuple[int, ...] = (1, 32)
    repeats: int = 10
    matrix: int = 8192  # of the matrix product that defines the peak
    image: tuple[int, int] = (8, 640)  # images of a step, and their height and width
    pairs: tuple[int, int] = (128, 30)  # sentence pairs of a step, and their tokens
    detr: DetrConfig = DetrConfig()
    translation: TransformerConfig = TransformerConfig(8000, 8000)
    workers: tuple[int, ...] = (0, 4, 8)


_BLOCK = BlockConfig(64, 4, 128, norm_first=False)
SMALL = Sizes(
    "argoverse1", scenes=12, batch=4, latency=(1, 4), repeats=2, matrix=1024, image=(2, 96), pairs=(8, 10),
    detr=DetrConfig(block=_BLOCK, layers=(1, 1)), translation=TransformerConfig(500, 500, _BLOCK, (1, 1)), workers=(0, 1),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """The device, the data and the sizes of a report."""

    device: torch.device
    store: SceneStore
    sizes: Sizes

    def recipe(self, name: str) -> TrainConfig:
        """The recipe of a model with the history and the horizon of the data."""
        if name == "constant_velocity":
            return TrainConfig(ConstantVelocityConfig())
        files = (
            f"{name.removesuffix('_sampler')}_{data}"
            for data in (self.sizes.data, "argoverse1", "eth_ucy")
        )
        recipe: TrainConfig = read_recipe(
            next(file for file in files if (LIBRARY / f"{file}.yaml").is_file())
        )
        scene = self.store[0]
        lengths = {
            "num_future": scene.num_future,
            "max_history": scene.num_history,
            "num_history": scene.num_history,
        }
        model = replace(
            recipe.model,
            **{key: value for key, value in lengths.items() if hasattr(recipe.model, key)},
        )
        return replace(
            recipe,
            model=AgentFormerSamplerConfig(model) if name == "agentformer_sampler" else model,
        )

    def batch(self, recipe: TrainConfig, count: int) -> SceneBatch:
        """The first scenes, on the device."""
        scenes: list[Scene] = [self.store[index % len(self.store)] for index in range(count)]
        return collate(scenes, recipe.data.batch).to(self.device)

    def median_ms(self, run: Callable[[], object]) -> float:
        """Median time of a call."""
        return median_ms(run, self.sizes.repeats, self.device.type)

    def cost(self, run: Callable[[], object]) -> tuple[float, float]:
        """Median time of a call, and the peak of its memory in MB above the memory before (on a GPU, above 0)."""
        start_mb = reset_peak(self.device.type)
        return self.median_ms(run), peak_mb(self.device.type) - start_mb

    def build(self, recipe: TrainConfig) -> tuple[nn.Module, nn.Module]:
        """Model and loss with the weights of seed 0."""
        torch.manual_seed(0)
        model = recipe.build_model()
        loss = (
            model.losses[0]()
            if recipe.loss is None or type(recipe.loss) not in model.losses
            else recipe.loss
        )
        return model.train().to(self.device), loss.build().to(self.device)

    def step(
        self, recipe: TrainConfig, batch: SceneBatch, precision: torch.dtype | None
    ) -> Callable[[], None]:
        """A training step: augmentation, forward and backward pass, optimiser."""
        model, loss = self.build(recipe)

        def value() -> Tensor:
            augmented = augment(batch, recipe.augment, torch.Generator().manual_seed(0))
            return loss(model, augmented)["loss"]

        return training_step(value, model, loss, recipe.optim, precision)


@contextmanager
def host_noise() -> Iterator[None]:
    """`torch.randn` draws on the CPU, so that devices have the same random numbers."""
    draw = torch.randn
    with patch(
        "torch.randn",
        lambda *shape, device=None, **options: draw(*shape, **options).to(device or "cpu"),
    ):
        yield


def parity(run: Run, name: str) -> Iterator[Row]:
    """Forecast, loss and gradient on the device and on the CPU."""
    recipe, results = run.recipe(name), []
    for device in (torch.device("cpu"), run.device):
        here = replace(run, device=device)
        (model, loss), batch = here.build(recipe), here.batch(recipe, 4)
        for part in model.modules():
            if isinstance(getattr(part, "dropout", None), float):
                part.dropout = 0.0
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        with torch.no_grad():
            position = model.eval()(batch.observation).in_batch_frame()[
                batch.observation.target_mask
            ]
        torch.manual_seed(0)
        with host_noise():
            value = loss(model.train(), batch)["loss"]
        if value.requires_grad:
            value.backward()
        gradients = [p.grad.cpu().double() for p in model.parameters() if p.grad is not None]
        results.append((position.cpu(), value.detach().cpu().double(), gradients))
    (position, value, gradients), (position_, value_, gradients_) = results
    error = torch.stack(
        [(a - b).square().sum() for a, b in zip(gradients, gradients_, strict=True)]
        or [torch.zeros(())]
    )
    norm = torch.stack([a.square().sum() for a in gradients] or [torch.ones(())])
    row: Row = {"median position, m": float((position - position_).norm(dim=-1).median())}
    row |= {"loss, relative": float((value - value_).abs() / value.abs().clamp(min=1e-3))}
    row |= {"gradient, relative": float((error.sum() / norm.sum().clamp(min=1e-12)).sqrt())}
    equal = (
        row["loss, relative"] <= MAX_LOSS_ERROR and row["gradient, relative"] <= MAX_GRADIENT_ERROR
    )
    yield row | {"equal": "yes" if equal else "NO"}


def training(run: Run, name: str) -> Iterator[Row]:
    """Throughput and memory of training steps in both precisions; the peak is that of a large matrix product."""
    recipe, size = run.recipe(name), run.sizes.matrix
    batch = run.batch(recipe, run.sizes.batch)
    for label, precision in PRECISIONS.items():
        step = run.step(recipe, batch, precision)
        with FlopCounterMode(display=False) as counter:
            step()
        time, memory = run.cost(step)
        speed = counter.get_total_flops() / time / 1e9
        row = {
            "precision": label,
            "step, ms": time,
            "scenes/s": 1e3 * batch.num_scenes / time,
            "TFLOP/s": speed,
        }
        left, right = (
            torch.randn(size, size, device=run.device, dtype=precision or torch.float32)
            for _ in range(2)
        )
        peak = 2 * size**3 / run.median_ms(lambda left=left, right=right: left @ right) / 1e9  # type: ignore[misc]
        yield row | {"share of peak": speed / peak, "memory, MB": memory}


def latency(run: Run, name: str) -> Iterator[Row]:
    """Milliseconds of a forecast."""
    recipe, row = run.recipe(name), {}
    model = run.build(recipe)[0].eval()
    with torch.inference_mode():
        for count in run.sizes.latency:
            observation = run.batch(recipe, count).observation
            row[f"batch {count}, ms"] = run.median_ms(
                lambda observation=observation: model(observation)
            )  # type: ignore[misc]
    yield row


def kernels(run: Run, name: str) -> Iterator[Row]:
    """The time of the kernels of a training step in bf16 by their kind."""
    recipe = run.recipe(name)
    step = run.step(recipe, run.batch(recipe, run.sizes.batch), torch.bfloat16)
    time = run.median_ms(step)
    activity = ProfilerActivity.CUDA if run.device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as record:
        step()
        torch.cuda.synchronize() if run.device.type == "cuda" else None
    shares, count, total = dict.fromkeys((*KINDS, "other"), 0.0), 0, 0.0
    for event in record.key_averages():
        spent = (
            event.self_device_time_total if run.device.type == "cuda" else event.self_cpu_time_total
        )
        kind = next(
            (
                kind
                for kind, words in KINDS.items()
                if any(word in event.key.lower() for word in words)
            ),
            "other",
        )
        shares[kind] += spent
        count, total = count + event.count, total + spent
    yield {"step, ms": time, "busy": total / 1e3 / time, "kernels": count} | {
        k: v / max(total, 1e-9) for k, v in shares.items()
    }


def tasks(run: Run, name: str) -> Iterator[Row]:
    """Training steps of detection and translation."""
    sizes, device = run.sizes, run.device
    torch.manual_seed(0)
    model: nn.Module
    if name == "detection":
        count, side = sizes.image
        model, pixels = (
            Detr(sizes.detr).train().to(device),
            torch.rand(count, 3, side, side, device=device),
        )
        box = torch.rand(count, 7, 4, device=device) * 0.4 + 0.1
        targets = BoxTargets(
            torch.zeros(count, 7, dtype=torch.int64, device=device), box, box[..., 0] > 0.15
        )

        def value() -> Tensor:
            return box_loss(model(pixels), targets, BoxLossConfig())["loss"]
    else:
        count, length = sizes.pairs
        model = Transformer(sizes.translation).train().to(device)
        source, target = (
            torch.randint(4, sizes.translation.source_tokens, (count, length), device=device)
            for _ in range(2)
        )

        def value() -> Tensor:
            logits = model(source, target[:, :-1])
            return token_loss(logits.flatten(0, 1), target[:, 1:].flatten())

    for label, precision in PRECISIONS.items():
        time, memory = run.cost(training_step(value, model, nn.Module(), OptimConfig(), precision))
        yield {
            "precision": label,
            "step, ms": time,
            "items/s": 1e3 * count / time,
            "memory, MB": memory,
        }


def pipeline(run: Run, name: str) -> Iterator[Row]:
    """Scenes per second from the store to the device, alone and with training steps in bf16."""
    recipe = run.recipe(name)
    data = SceneDataset(run.store, recipe.data.batch)
    steps = count_steps(len(data), min(run.sizes.batch, max(len(data) // 4, 1)))
    model, loss = run.build(recipe)
    step = training_step(
        lambda batch: loss(model, batch)["loss"], model, loss, recipe.optim, torch.bfloat16
    )

    for workers in run.sizes.workers:
        sampler = RankSampler(EpochShuffle(len(data), steps, 0, 1, data.sizes))
        loader = make_loader(data, sampler, workers, pinned=run.device.type == "cuda")
        row: Row = {"workers": workers}
        for label, use in (("load", lambda batch: None), ("train", step)):

            def epoch(loader: Any = loader, use: Callable[..., None] = use) -> None:
                for batch in loader:
                    use(batch.to(run.device, non_blocking=True))

            row[f"{label}, scenes/s"] = 1e3 * len(data) / run.median_ms(epoch)
        yield row


TABLES: dict[
    str, tuple[Callable[[Run, str], Iterator[Row]], Callable[[Sizes], tuple[str, ...]]]
] = {
    "Parity with the CPU": (parity, lambda sizes: sizes.models),
    "Training": (training, lambda sizes: sizes.models),
    "Latency": (latency, lambda sizes: sizes.models),
    "Kernels of a training step in bf16": (kernels, lambda sizes: sizes.models),
    "Training steps of reference tasks": (tasks, lambda sizes: ("detection", "translation")),
    "From the store to the device": (pipeline, lambda sizes: sizes.models[1:2]),
}


def measured(table: Callable[[Run, str], Iterator[Row]], run: Run, name: str) -> Iterator[Row]:
    """Rows of a model; an error is a row, so that the other models are measured."""
    if name == "constant_velocity" and table in (training, kernels):
        return  # has no parameters
    try:
        yield from ({"model": name} | row for row in table(run, name))
    except (RuntimeError, ValueError, ImportError, NotImplementedError) as error:
        yield {
            "model": name,
            "error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
        }
    if run.device.type == "cuda":
        torch.cuda.empty_cache()


def markdown(rows: list[Row]) -> str:
    """Rows as a table for the documentation."""
    names = [*dict.fromkeys(name for row in rows for name in row)]
    cells = [
        [
            f"{row.get(name, ''):.3g}"
            if isinstance(row.get(name), float)
            else str(row.get(name, ""))
            for name in names
        ]
        for row in rows
    ]
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [names, ["---"] * len(names), *cells]
    )


def report(out: Path, device: torch.device, sizes: Sizes, folder: Path) -> bool:
    """Simulate traffic in `folder`, measure and print all tables, write them to `out`; True if all rows are as expected."""
    workers = max(1, *sizes.workers)
    synthesize(folder / "raw", sizes.scenes, 0, test_fraction=0.0, workers=workers, progress=False)
    prepare(
        Argoverse2(),
        folder / "raw",
        folder / "store",
        PrepareOptions(("train",), workers, progress=False),
    )
    run = Run(device, SceneStore(folder / "store", "train"), sizes)
    tables: dict[str, list[Row]] = {}
    machine = environment(device.type)
    for title, (table, names) in TABLES.items():
        torch.set_float32_matmul_precision("highest" if table is parity else "high")
        torch.backends.cudnn.allow_tf32 = table is not parity
        tables[title] = [row for name in names(sizes) for row in measured(table, run, name)]
        print(f"\n## {title}\n\n{markdown(tables[title])}", flush=True)
        write_json(out, tables, machine)
    return not any(
        row.get("equal") == "NO" or "error" in row for rows in tables.values() for row in rows
    )


def main() -> None:
    """Read the command line and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int)
    args = parser.parse_args()
    if not args.small and not torch.cuda.is_available():
        raise SystemExit(
            "gpu_report: there is no CUDA device here; --small computes all tables on the CPU"
        )
    sizes = SMALL if args.small else Sizes()
    warnings.filterwarnings("ignore", ".*flop.*|.*inefficient.*")
    with tempfile.TemporaryDirectory() as folder:
        device = torch.device("cpu" if args.small else "cuda")
        good = report(
            args.out, device, replace(sizes, repeats=args.repeats or sizes.repeats), Path(folder)
        )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
