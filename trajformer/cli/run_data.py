"""Raw data to stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajformer.cli.files import bars, make_folder
from trajformer.cli.stopping import stops_cleanly

if TYPE_CHECKING:
    from data_prep.reader import Reader


def synthesize(out: Path, scenes: int, seed: int, workers: int, *, branches: bool = False) -> None:
    """Write simulated scenes in the official Argoverse 2 raw layout and say how many each split has."""
    from data_prep.synthetic import synthesize as simulate

    make_folder(out)
    counts = simulate(out, scenes, seed, workers=workers, progress=bars(), branches=branches)
    print(", ".join(f"{split} {count}" for split, count in counts.items()) + f" {'pasts' if branches else 'scenes'} in {out}")


def preprocess(reader: Reader, raw: Path, store: Path, **options: Any) -> None:
    """Prepare a raw data set and say what was kept, what was skipped and why."""
    from data_prep.engine.prepare import PrepareOptions, prepare

    with stops_cleanly("preprocess", "finished shards are kept: run the same command again to go on"):
        summary = prepare(reader, raw, store, PrepareOptions(**options))
    for split in summary.splits:
        kept = f", {split.kept_shards} of {split.shards} shards were there already" if split.kept_shards else ""
        print(f"{split.split}: {split.scenes} scenes, {split.bytes / 1e6:.1f} MB, {len(split.skipped)} skipped{kept}")
        for name, reason in split.skipped:
            print(f"  skipped {name}: {reason}")
    print(f"{store}: {summary.scenes} scenes in {summary.seconds:.1f} s")


def preprocess_dry_run(reader: Reader, raw: Path, store: Path, **options: Any) -> None:
    """Say what preparing would do, how large the store gets and how long that takes; write nothing."""
    from data_prep.engine.estimate import estimate
    from data_prep.engine.prepare import PrepareOptions
    from data_prep.engine.progress import duration_text, size_text

    chosen = PrepareOptions(**options)
    found = estimate(reader, raw, store, chosen)
    cluster = chosen.ray_address is not None
    processes = 1 if cluster else max(1, min(chosen.workers, os.cpu_count() or 1))
    by = "one process" if processes == 1 else f"{processes} processes"
    for split in found.splits:
        shards = f"{split.finished_shards} of {split.shards} shards finished"
        print(f"{split.split}: {split.scenes:,} scenes, {size_text(split.raw_bytes)} raw; {shards}")
        print(f"  store about {size_text(split.store_bytes)}, {len(split.skipped)} of {split.sampled} sampled scenes skipped")
        for name, reason in split.skipped:
            print(f"    would skip {name}: {reason}")
    left, free = found.bytes_to_write, found.free_bytes
    print(f"{store}: about {size_text(left)} to write, about {duration_text(found.seconds / processes)} by {by}")
    print(f"  {size_text(free)} free there" + (f": WARNING: {size_text(left)} will not fit" if left > free else ""))
    if found.published:
        scenes, size, seconds = found.published
        amount = f"about {size_text(size)}, about {duration_text(seconds / processes)} by {by}"
        print(f"the complete published {reader.name}: {scenes:,} scenes, {amount}")
    print("dry run: nothing was written")
