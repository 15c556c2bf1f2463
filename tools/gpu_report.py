"""Measure this package on a GPU: parity with the CPU, speed, memory, kernels, tasks and loading.

    python tools/gpu_report.py --out R.json [--small] [--repeats N]

The report is expected to take less than ten minutes on one GPU (not measured). It needs neither
data (it simulates traffic) nor jsonargparse or av2. R.json is written after each table, so that an
interrupted report keeps its tables. Tables are printed as Markdown. `--small` computes all tables
with small sizes on the CPU. The exit status is 1 if the devices differ or a row failed.

Parity compares the forecast, the loss and the gradient of each model in full single precision,
without dropout, for the same weights and random numbers. Training steps include augmentation and
the optimiser. "share of peak" relates the operations of matrix products and attention to the
fastest matrix product of this device in the same precision. "busy" is the time of all kernels
divided by the time of the step. Weights are random: they do not change the time.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
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

# relative; sums are in another order, and argmins may change near ties
MAX_LOSS_ERROR = 1e-3
MAX_GRADIENT_ERROR = 1e-2
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
KINDS = {  # words in the names of kernels
    "attention": ("flash", "fmha", "attention", "scaled_dot"),
    "matmul": ("gemm", "cutlass", "nvjet", "::mm", "addmm", "bmm"),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a report."""

    data: str = "argoverse2"  # the recipes
    models: tuple[str, ...] = (*MODELS, "mmtransformer_rts")  # recipes without their data
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
    data="argoverse1",
    scenes=12,
    batch=4,
    latency=(1, 4),
    repeats=2,
    matrix=1024,
    image=(2, 96),
    pairs=(8, 10),
    detr=DetrConfig(block=_BLOCK, layers=(1, 1)),
    translation=TransformerConfig(500, 500, _BLOCK, (1, 1)),
    workers=(0, 1),
)


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
        recipe: TrainConfig = read_recipe(self._recipe_file(name))
        scene = self.store[0]
        lengths = {
            "num_future": scene.num_future,
            "max_history": scene.num_history,
            "num_history": scene.num_history,
        }
        changes = {key: value for key, value in lengths.items() if hasattr(recipe.model, key)}
        model = replace(recipe.model, **changes)
        if name == "agentformer_sampler":
            model = AgentFormerSamplerConfig(model)
        return replace(recipe, model=model)

    def _recipe_file(self, name: str) -> str:
        """The recipe of a model for the data of the report, or for other data."""
        for data in (self.sizes.data, "argoverse1", "eth_ucy"):
            file = f"{name.removesuffix('_sampler')}_{data}"
            if (LIBRARY / f"{file}.yaml").is_file():
                return file
        raise ValueError(f"{name}: no recipe")

    @property
    def on_gpu(self) -> bool:
        """Whether the report is of a GPU."""
        return self.device.type == "cuda"

    def batch(self, recipe: TrainConfig, count: int) -> SceneBatch:
        """The first scenes, on the device."""
        scenes: list[Scene] = [self.store[index % len(self.store)] for index in range(count)]
        return collate(scenes, recipe.data.batch).to(self.device)

    def median_ms(self, run: Callable[[], object]) -> float:
        """Median time of a call."""
        return median_ms(run, self.sizes.repeats, self.device.type)

    def cost(self, run: Callable[[], object]) -> tuple[float, float]:
        """Median time of a call, and the peak of its memory in MB.

        The peak is above the memory before the call; on a GPU, above 0.
        """
        start_mb = reset_peak(self.device.type)
        return self.median_ms(run), peak_mb(self.device.type) - start_mb

    def build(self, recipe: TrainConfig) -> tuple[nn.Module, nn.Module]:
        """Model and loss with the weights of seed 0."""
        torch.manual_seed(0)
        model = recipe.build_model()
        loss = recipe.loss
        if loss is None or type(loss) not in model.losses:
            loss = model.losses[0]()
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

    def draw_on_cpu(*shape: Any, device: Any = None, **options: Any) -> Tensor:
        return draw(*shape, **options).to(device or "cpu")

    with patch("torch.randn", draw_on_cpu):
        yield


class Outputs(NamedTuple):
    """Forecast positions, the loss, and the gradient of each parameter, on the CPU."""

    position: Tensor
    loss: Tensor
    gradients: list[Tensor]


def outputs(run: Run, recipe: TrainConfig) -> Outputs:
    """The outputs of a model for four scenes, without dropout."""
    model, loss = run.build(recipe)
    batch = run.batch(recipe, 4)
    for part in model.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    with torch.no_grad():
        forecast = model.eval()(batch.observation)
        position = forecast.in_batch_frame()[batch.observation.target_mask]
    torch.manual_seed(0)
    with host_noise():
        value = loss(model.train(), batch)["loss"]
    if value.requires_grad:
        value.backward()
    gradients = [p.grad.cpu().double() for p in model.parameters() if p.grad is not None]
    return Outputs(position.cpu(), value.detach().cpu().double(), gradients)


def parity(run: Run, name: str) -> Iterator[Row]:
    """Forecast, loss and gradient on the device and on the CPU."""
    recipe = run.recipe(name)
    reference = outputs(replace(run, device=torch.device("cpu")), recipe)
    measured = outputs(run, recipe)
    distance = (reference.position - measured.position).norm(dim=-1)
    loss_error = (reference.loss - measured.loss).abs() / reference.loss.abs().clamp(min=1e-3)
    gradient_error = relative_error(reference.gradients, measured.gradients)
    equal = loss_error <= MAX_LOSS_ERROR and gradient_error <= MAX_GRADIENT_ERROR
    yield {
        "median position, m": float(distance.median()),
        "loss, relative": float(loss_error),
        "gradient, relative": gradient_error,
        "equal": "yes" if equal else "NO",
    }


def relative_error(reference: list[Tensor], measured: list[Tensor]) -> float:
    """Norm of the difference of all gradients, relative to the norm of the reference."""
    squared_error = 0.0
    squared_norm = 0.0
    for a, b in zip(reference, measured, strict=True):
        squared_error += float((a - b).square().sum())
        squared_norm += float(a.square().sum())
    return (squared_error / max(squared_norm, 1e-12)) ** 0.5


def training(run: Run, name: str) -> Iterator[Row]:
    """Throughput and memory of training steps in both precisions."""
    recipe = run.recipe(name)
    batch = run.batch(recipe, run.sizes.batch)
    for label, precision in PRECISIONS.items():
        step = run.step(recipe, batch, precision)
        with FlopCounterMode(display=False) as counter:
            step()
        time, memory = run.cost(step)
        speed = counter.get_total_flops() / time / 1e9
        yield {
            "precision": label,
            "step, ms": time,
            "scenes/s": 1e3 * batch.num_scenes / time,
            "TFLOP/s": speed,
            "share of peak": speed / peak_speed(run, precision or torch.float32),
            "memory, MB": memory,
        }


def peak_speed(run: Run, dtype: torch.dtype) -> float:
    """TFLOP/s of a large matrix product."""
    size = run.sizes.matrix
    left = torch.randn(size, size, device=run.device, dtype=dtype)
    right = torch.randn(size, size, device=run.device, dtype=dtype)
    return 2 * size**3 / run.median_ms(lambda: left @ right) / 1e9


def latency(run: Run, name: str) -> Iterator[Row]:
    """Milliseconds of a forecast."""
    recipe = run.recipe(name)
    model, _ = run.build(recipe)
    model.eval()
    row = {}
    with torch.inference_mode():
        for count in run.sizes.latency:
            observation = run.batch(recipe, count).observation
            row[f"batch {count}, ms"] = run.median_ms(partial(model, observation))
    yield row


def kernels(run: Run, name: str) -> Iterator[Row]:
    """The time of the kernels of a training step in bf16 by their kind."""
    recipe = run.recipe(name)
    step = run.step(recipe, run.batch(recipe, run.sizes.batch), torch.bfloat16)
    time = run.median_ms(step)
    activity = ProfilerActivity.CUDA if run.on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as record:
        step()
        if run.on_gpu:
            torch.cuda.synchronize()
    spent = dict.fromkeys((*KINDS, "other"), 0.0)
    count = 0
    for event in record.key_averages():
        time_us = event.self_cpu_time_total
        if run.on_gpu:
            time_us = event.self_device_time_total
        spent[kind_of(event.key)] += time_us
        count += event.count
    total_us = sum(spent.values())
    row: Row = {"step, ms": time, "busy": total_us / 1e3 / time, "kernels": count}
    for kind, time_us in spent.items():
        row[kind] = time_us / max(total_us, 1e-9)
    yield row


def kind_of(kernel: str) -> str:
    """The kind of a kernel by its name."""
    for kind, words in KINDS.items():
        if any(word in kernel.lower() for word in words):
            return kind
    return "other"


class Task(NamedTuple):
    """A model of a reference task, its loss for random data, and the number of items in a step."""

    model: nn.Module
    loss: Callable[[], Tensor]
    count: int


def detection(run: Run) -> Task:
    """DETR on images of noise with seven boxes."""
    count, side = run.sizes.image
    model = Detr(run.sizes.detr).train().to(run.device)
    pixels = torch.rand(count, 3, side, side, device=run.device)
    box = torch.rand(count, 7, 4, device=run.device) * 0.4 + 0.1
    label = torch.zeros(count, 7, dtype=torch.int64, device=run.device)
    targets = BoxTargets(label, box, box[..., 0] > 0.15)

    def loss() -> Tensor:
        return box_loss(model(pixels), targets, BoxLossConfig())["loss"]

    return Task(model, loss, count)


def translation(run: Run) -> Task:
    """The Transformer on pairs of random sentences."""
    config = run.sizes.translation
    size = run.sizes.pairs
    model = Transformer(config).train().to(run.device)
    source = torch.randint(4, config.source_tokens, size, device=run.device)
    target = torch.randint(4, config.source_tokens, size, device=run.device)

    def loss() -> Tensor:
        logits = model(source, target[:, :-1])
        return token_loss(logits.flatten(0, 1), target[:, 1:].flatten())

    return Task(model, loss, size[0])


TASKS = {"detection": detection, "translation": translation}


def tasks(run: Run, name: str) -> Iterator[Row]:
    """Training steps of a reference task."""
    torch.manual_seed(0)
    task = TASKS[name](run)
    for label, precision in PRECISIONS.items():
        step = training_step(task.loss, task.model, nn.Module(), OptimConfig(), precision)
        time, memory = run.cost(step)
        yield {
            "precision": label,
            "step, ms": time,
            "items/s": 1e3 * task.count / time,
            "memory, MB": memory,
        }


def pipeline(run: Run, name: str) -> Iterator[Row]:
    """Scenes per second from the store to the device, alone and with training steps in bf16."""
    recipe = run.recipe(name)
    data = SceneDataset(run.store, recipe.data.batch)
    batch_size = min(run.sizes.batch, max(len(data) // 4, 1))
    steps = count_steps(len(data), batch_size)
    model, loss = run.build(recipe)

    def value(batch: SceneBatch) -> Tensor:
        return loss(model, batch)["loss"]

    def only_load(batch: SceneBatch) -> None:
        pass

    train_step = training_step(value, model, loss, recipe.optim, torch.bfloat16)
    for workers in run.sizes.workers:
        sampler = RankSampler(EpochShuffle(len(data), steps, 0, 1, data.sizes))
        loader = make_loader(data, sampler, workers, pinned=run.on_gpu)
        load_ms = run.median_ms(partial(use_all, loader, only_load, run.device))
        train_ms = run.median_ms(partial(use_all, loader, train_step, run.device))
        yield {
            "workers": workers,
            "load, scenes/s": 1e3 * len(data) / load_ms,
            "train, scenes/s": 1e3 * len(data) / train_ms,
        }


def use_all(loader: Any, use: Callable[[SceneBatch], None], device: torch.device) -> None:
    """Call a function with each batch of a loader, on the device."""
    for batch in loader:
        use(batch.to(device, non_blocking=True))


Table = Callable[[Run, str], Iterator[Row]]
TABLES: dict[str, Table] = {
    "Parity with the CPU": parity,
    "Training": training,
    "Latency": latency,
    "Kernels of a training step in bf16": kernels,
    "Training steps of reference tasks": tasks,
    "From the store to the device": pipeline,
}


def names_of_rows(table: Table, sizes: Sizes) -> tuple[str, ...]:
    """Names of the models or tasks of a table."""
    if table is tasks:
        return tuple(TASKS)
    if table is pipeline:
        return sizes.models[1:2]
    return sizes.models


def measured(table: Table, run: Run, name: str) -> Iterator[Row]:
    """Rows of a model; an error is a row, so that the other models are measured."""
    if name == "constant_velocity" and table in (training, kernels):
        return  # has no parameters
    try:
        for row in table(run, name):
            yield {"model": name, **row}
    except (RuntimeError, ValueError, ImportError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        yield {"model": name, "error": f"{type(error).__name__}: {reason[:200]}"}
    if run.on_gpu:
        torch.cuda.empty_cache()


def markdown(rows: list[Row]) -> str:
    """Rows as a table for the documentation."""
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    lines = [names, ["---"] * len(names)]
    for row in rows:
        lines.append([cell(row.get(name, "")) for name in names])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: Any) -> str:
    """A value as text, a float with three digits."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def report(out: Path, device: torch.device, sizes: Sizes, folder: Path) -> bool:
    """Simulate traffic in `folder`, measure and print all tables, and write them to `out`.

    Returns True if all rows are as expected.
    """
    raw = folder / "raw"
    store = folder / "store"
    workers = max(1, *sizes.workers)
    synthesize(raw, sizes.scenes, 0, test_fraction=0.0, workers=workers, progress=False)
    prepare(Argoverse2(), raw, store, PrepareOptions(("train",), workers, progress=False))
    run = Run(device, SceneStore(store, "train"), sizes)
    tables: dict[str, list[Row]] = {}
    machine = environment(device.type)
    for title, table in TABLES.items():
        # parity in full single precision, all other tables with TF32 as in training
        torch.set_float32_matmul_precision("highest" if table is parity else "high")
        torch.backends.cudnn.allow_tf32 = table is not parity
        tables[title] = []
        for name in names_of_rows(table, sizes):
            tables[title] += measured(table, run, name)
        print(f"\n## {title}\n\n{markdown(tables[title])}", flush=True)
        write_json(out, tables, machine)
    return not any(map(is_bad, chain.from_iterable(tables.values())))


def is_bad(row: Row) -> bool:
    """Whether the devices differ or a measurement failed."""
    return row.get("equal") == "NO" or "error" in row


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
        advice = "--small computes all tables on the CPU"
        raise SystemExit(f"gpu_report: there is no CUDA device here; {advice}")
    sizes, device = Sizes(), torch.device("cuda")
    if args.small:
        sizes, device = SMALL, torch.device("cpu")
    if args.repeats:
        sizes = replace(sizes, repeats=args.repeats)
    warnings.filterwarnings("ignore", ".*flop.*|.*inefficient.*")
    with tempfile.TemporaryDirectory() as folder:
        good = report(args.out, device, sizes, Path(folder))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
