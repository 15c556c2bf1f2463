"""The scenes of a training: their data sets, checks, order and loaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader

from trajformer.data.loading import (
    AXES,
    BranchDataset,
    EpochShuffle,
    MixedDataset,
    SceneDataset,
    SequentialOrder,
    padding,
)
from trajformer.data.mixture import Mixture
from trajformer.errors import TrajformerError
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import DataConfig
from trajformer.scenes.scene import is_lane
from trajformer.scenes.spec import (
    CLOCK,
    DataSpec,
    check_scenes,
    common_spec,
    max_steps,
    warn,
    warn_about_lanes,
    warn_about_maps,
)
from trajformer.scenes.store import SceneStore
from trajformer.training.base import TaskData

Part = Literal["train", "val"]


def is_first_process() -> bool:
    """Whether this process prints for all of them."""
    return getattr(rank_zero_only, "rank", 0) == 0


@dataclass(frozen=True, eq=False)
class _Source:
    """One data set of a training."""

    scenes: SceneDataset
    table: pd.DataFrame  # the rows of the store's index that are used
    spec: DataSpec
    num_drawn: int  # scenes of an epoch


class SceneData(TaskData):
    """The training and validation scenes; unusable stores raise errors before training starts.

    Several data sets are brought to one clock (`common_spec`), also if only one part has several.
    Warns if validation scenes are also training scenes, or if only one of both has maps.

    Attributes:
        spec: properties of the training scenes.
        horizons: number of recorded future steps of each validation source, on that clock.
        val_names: names of the validation sources: the data set, and a number if it occurs again.
    """

    train: SceneDataset | MixedDataset
    val: SceneDataset | MixedDataset

    def __init__(self, config: DataConfig, seed: int = 0) -> None:
        self.config = config
        sources = {part: self._open(part) for part in ("train", "val")}
        self.spec = self._compare(sources["train"], sources["val"])
        if config.has_several:
            for source in (*sources["train"], *sources["val"]):
                source.scenes.clock = self.spec
        self.sources = sources["train"]
        self.val_sources = sources["val"]
        self.horizons = [self._horizon(source.spec) for source in self.val_sources]
        self.val_names = _names(self.val_sources)
        train = _join([source.scenes for source in self.sources])
        val = _join([source.scenes for source in self.val_sources])
        super().__init__(train, val, config, seed)

    def _open(self, part: Part) -> list[_Source]:
        """The data sets of a part (TrajformerError: a store cannot be used)."""
        config = self.config
        if not config.sources(part):
            raise TrajformerError(f"data.{part}: give a store made by `trajformer preprocess`")
        is_training = part == "train"
        kind = BranchDataset if config.branches and is_training else SceneDataset
        batch = config.train_batch if is_training else config.batch
        limit = config.limit_train if is_training else None
        opened = []
        for one in config.sources(part):
            store = SceneStore(one.store, str(one.split))
            scenes = kind(store, batch, limit, cache=config.cache)
            _check_usable(part, scenes)
            table = _index(scenes)
            spec = _describe_scenes(part, scenes, table)
            drawn = max(round(one.weight * len(scenes)), 1)
            opened.append(_Source(scenes, table, spec, drawn))
        return opened

    def _compare(self, train: list[_Source], val: list[_Source]) -> DataSpec:
        """Compare the training and validation scenes with each other.

        Returns the properties of the training scenes.
        """
        for source in train:
            self._check_unit("train", source)
        spec = train[0].spec
        if self.config.has_several:
            spec = common_spec([source.spec for source in train])
            for source in val:
                self._check_unit("val", source)
            for part, sources in (("train", train), ("val", val)):
                for source in sources:
                    _check_resampling(part, source, spec)
        else:
            check_scenes(val[0].spec, spec, val[0].scenes.name)
        if is_first_process():
            table = pd.concat([source.table for source in train])
            for source in val:
                _warn_about_validation(source, spec, table)
        return spec

    def _check_unit(self, part: Part, source: _Source) -> None:
        unit = source.spec.unit
        if unit != self.config.unit:
            field = "unit" if part == "train" else part
            problem = f"{self.config.unit}, but {source.scenes.name} is in {unit}"
            advice = f"set data.unit if all lengths of this recipe are in {unit}"
            raise TrajformerError(f"data.{field}: {problem}; use a recipe for {unit}, or {advice}")

    def _horizon(self, spec: DataSpec) -> int:
        """The number of recorded future steps of scenes on the clock of the training."""
        assert self.spec.num_future
        if not self.config.has_several:
            return self.spec.num_future
        return min(_steps_on_clock(spec, self.spec), self.spec.num_future)

    def count_items(self, part: str) -> int:
        """Number of scenes of an epoch, or of a validation."""
        if part == "train":
            return sum(source.num_drawn for source in self.sources)
        return super().count_items(part)

    def summary(self) -> str:
        """The data sets and their numbers of scenes, in a few words."""
        if not isinstance(self.train, MixedDataset):
            return super().summary()
        shares = []
        for source in self.sources:
            count = f"{source.num_drawn:,} of {len(source.scenes):,} scenes of "
            shares.append(count + source.scenes.name)
        return f"an epoch has {' and '.join(shares)}, {len(self.val):,} to validate"

    def state_dict(self) -> dict[str, Any]:
        """As in `TaskData`, with the batch settings and the numbers of scenes of several sources.

        The sizes of samples, and so the order, depend on them.
        """
        state = super().state_dict() | {"batch": to_plain(self.config.train_batch)}
        if self.config.has_several:
            state["sources"] = [[len(one.scenes), one.num_drawn] for one in self.sources]
        return state

    def measured(self) -> SceneDataset | MixedDataset:
        """The training scenes.

        With workers, a copy without a cache, because the workers keep the samples.
        """
        if not self.config.workers:
            return self.train
        copies = []
        for source in self.sources:
            scenes = source.scenes
            copy = type(scenes)(scenes.store, self.config.train_batch, len(scenes))
            copy.clock = scenes.clock
            copies.append(copy)
        return _join(copies)

    def order(self) -> EpochShuffle:
        """The order of training, a mixture if there are several sources or a weight."""
        order = super().order()
        counts = tuple([len(source.scenes) for source in self.sources])
        drawn = tuple([source.num_drawn for source in self.sources])
        if len(counts) == 1 and counts == drawn:
            return order
        return replace(order, mixture=Mixture(counts, drawn, self.seed))

    def val_dataloader(self) -> DataLoader[Any] | list[DataLoader[Any]]:
        """The stored order, every scene once: one loader for each source."""
        loaders = []
        for source in self.val_sources:
            count = len(source.scenes)
            order = SequentialOrder(count, self._steps_of("val", count, source.scenes.name))
            loaders.append(self._loader(source.scenes, order))
        return loaders if len(loaders) > 1 else loaders[0]

    def count_steps(self) -> int:
        """As in `TaskData`; every validation source has enough scenes, too."""
        for source in self.val_sources:
            self._steps_of("val", len(source.scenes), source.scenes.name)
        return super().count_steps()

    def padding(self, epoch: int = 0) -> dict[str, float]:
        """Fractions of padding in the training batches of one process.

        They are for each axis, and for agents and polylines together.
        """
        order = self.order()
        filled, entries = padding(order.epoch(epoch), order.sizes)
        fractions = 1 - filled / entries.clip(1)
        by_axis = dict(zip(AXES, fractions.tolist(), strict=True))
        by_axis["agents and polylines"] = float(1 - filled[:2].sum() / entries[:2].sum())
        return by_axis


def _join(scenes: Sequence[SceneDataset]) -> SceneDataset | MixedDataset:
    return scenes[0] if len(scenes) == 1 else MixedDataset(scenes)


def _names(sources: Sequence[_Source]) -> list[str]:
    """Names of data sets; the second one with the same name ends in _2."""
    seen = Counter[str]()
    names = []
    for source in sources:
        name = source.spec.source or "unknown"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def _index(scenes: SceneDataset) -> pd.DataFrame:
    """The rows of a store's index that belong to a data set."""
    table: pd.DataFrame = scenes.store.index()
    return table.iloc[: scenes.num_scenes]


def _check_usable(part: str, scenes: SceneDataset) -> None:
    """Raise TrajformerError if there are no scenes, or none with a known future."""
    where = f"data.{part}: {scenes.store.root}: split '{scenes.store.split}'"
    if not len(scenes):
        raise TrajformerError(f"{where} has no scenes")
    first = scenes.store[0]
    if first.num_steps == first.num_history:
        raise TrajformerError(f"{where} has no known future")


def _steps_on_clock(scenes: DataSpec, clock: DataSpec) -> int:
    """The number of future steps of scenes with the period of another clock."""
    assert scenes.period_s and scenes.num_history and scenes.num_future and clock.period_s
    ratio = clock.period_s / scenes.period_s
    _, future = max_steps(ratio, scenes.num_history, scenes.num_future)
    return future


def _check_resampling(part: str, source: _Source, clock: DataSpec) -> None:
    """Raise TrajformerError if scenes have no future step with the period of another clock."""
    if _steps_on_clock(source.spec, clock) < 1:
        horizon_s = (source.spec.num_future or 0) * (source.spec.period_s or 0.0)
        problem = f"a horizon of {horizon_s:g} s is shorter than a step of {clock.period_s:g} s"
        advice = "the period is that of the first source of data.train"
        raise TrajformerError(f"data.{part}: {source.scenes.name}: {problem}; {advice}")


def _warn_about_validation(source: _Source, spec: DataSpec, train_table: pd.DataFrame) -> None:
    """Warn if validation scenes have other maps than training scenes, or are training scenes."""
    scenes = source.scenes
    where = f"data.val: {scenes.name}: split '{scenes.store.split}'"
    scenes_with_map = 0
    if source.spec.has_map:
        scenes_with_map = int((source.table.num_polylines > 0).sum())
    warn_about_maps(scenes_with_map, len(scenes), spec, where)
    if scenes_with_map:
        warn_about_lanes(bool(source.spec.has_lanes), spec, where)
    # Ids recur between splits, of Argoverse 1 for example, so the origin is compared, too.
    identity = ["scene_id", "origin_x", "origin_y"]
    num_common = len(pd.merge(train_table, source.table, on=identity))
    if num_common:
        count = f"{num_common} of {len(scenes)}"
        warn(f"{where}: {count} validation scenes are also training scenes")


def _describe_scenes(part: str, scenes: SceneDataset, table: pd.DataFrame) -> DataSpec:
    """The properties of scenes (TrajformerError: their clocks differ)."""
    clocks = table[list(CLOCK)].drop_duplicates()
    if len(clocks) > 1:
        two_clocks = clocks.iloc[:2].to_dict("records")
        different = " and ".join(str(clock) for clock in two_clocks)
        split = f"split '{scenes.store.split}'"
        raise TrajformerError(f"data.{part}: {scenes.name}: {split} has scenes of {different}")
    spec = DataSpec.of(scenes.store[0])
    return replace(spec, has_map=_has_map(scenes, table), has_lanes=_has_lanes(scenes))


def _has_lanes(scenes: SceneDataset) -> bool:
    """Whether one of 64 scenes has lanes."""
    chosen = np.linspace(0, len(scenes) - 1, min(64, len(scenes))).astype(int).tolist()
    return any(is_lane(scenes.store[index].polyline_kind).any() for index in chosen)


def _has_map(scenes: SceneDataset, table: pd.DataFrame) -> bool:
    """Whether models receive a part of the maps, judged by the first scene with polylines."""
    with_polylines = table.num_polylines.to_numpy().nonzero()[0]
    if not len(with_polylines):
        return False
    first = scenes.store[int(with_polylines[0])]
    if scenes.config.receives(first.polyline_kind).any():
        return True
    where = f"{scenes.name}: split '{scenes.store.split}'"
    kinds = "the maps have road edges and road lines only"
    warn(f"{where}: {kinds}, which models receive with data.batch.road_lines: true")
    return False
