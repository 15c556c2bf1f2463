"""Contract tests of readers: pass a reader and a small raw folder of valid files.

    def test_my_reader(tmp_path):
        write_two_recordings(tmp_path / "raw")
        check_reader(MyReader(), tmp_path / "raw", tmp_path)

A reader is any object with the methods `splits(raw)`, `inputs(raw, split)` and
`read(item, split, raw)` of `data_prep.reader.Reader`. All failures are AssertionErrors that name
the input, or the file and its damage.
"""

import gzip
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.geometry import GRID_M, on_grid
from trajformer.scenes.scene import Scene, scenes_equal
from trajformer.scenes.shard import Shard, ShardInfo, write_shard

Outcome = Scene | str  # of one input: the scene, or the message of the error
Damage = Callable[[Path], object]  # damages a valid file in place
MAX_REASON = 520  # characters of an error message, without the raw folder
WORDS = [
    "",
    "nan",
    "-inf",
    "1e300",
    "1e400",
    "-1",
    "1.5",
    "9" * 30,
    "null",
    "\0",
    "\x1b[2J",
    "é\u2028",
    '"',
    "<",
    "&x;",
    ",",
    "\n",
]


def check_reader(reader: Any, raw: Path, tmp_path: Path) -> None:
    """Run all checks: valid scenes from valid files, and one-line errors from damaged files.

    The folder `raw` has at least one valid scene; it is read after each damage, so it should be
    small. The empty or new folder `tmp_path` is for shards and damaged copies.
    """
    check_scenes(reader, raw, tmp_path)
    check_damaged_files(reader, raw, tmp_path)


def check_scenes(reader: Any, raw: Path, tmp_path: Path) -> None:
    """Check that each listed input becomes a valid scene, which a shard stores unchanged.

    Splits, inputs and scenes are the same in a second call.
    """
    splits = reader.splits(raw)
    assert splits and splits == sorted(splits) == reader.splits(raw), f"splits: {splits}"
    for split in splits:
        items = reader.inputs(raw, split)
        assert items, f"{split}: no inputs"
        assert items == reader.inputs(raw, split), f"{split}: inputs differ between two calls"
        scenes = [_read_twice(reader, item, split, raw) for item in items]
        for scene in scenes:
            _check_grid(scene)
        ids = {scene.scene_id for scene in scenes}
        assert len(ids) == len(items), f"{split}: two scenes have the same id"
        check_round_trip(scenes, tmp_path)


def _check_grid(scene: Scene) -> None:
    """Check that positions are those of `geometry.relative_position`."""
    advice = "use data_prep.readers.columns.Agents"
    is_whole = np.array_equal(scene.origin, np.round(scene.origin))
    assert is_whole, f"origin: no whole metres; {advice}"
    observed = scene.position[:, : scene.num_history]
    for name, value in (("position", observed), ("point", scene.point)):
        assert np.array_equal(value, on_grid(value)), f"{name}: no multiples of {GRID_M}; {advice}"


def _read_twice(reader: Any, item: Any, split: str, raw: Path) -> Scene:
    """The valid scene of an input, which is read twice."""
    scene: Scene = reader.read(item, split, raw).validate()
    again = reader.read(item, split, raw)
    assert scenes_equal(scene, again), f"{item}: reading twice gives different scenes"
    assert scene.split == split, f"{item}: split {scene.split!r}, expected {split!r}"
    return scene


def check_round_trip(scenes: list[Scene], tmp_path: Path) -> None:
    """Check that a shard stores scenes unchanged."""
    path = tmp_path / "round_trip.arrow"
    write_shard(path, scenes, ShardInfo(scenes[0].source, scenes[0].split))
    shard = Shard(path)
    for row, scene in enumerate(scenes):
        stored = shard.scene(row).validate()
        assert scenes_equal(stored, scene), f"scene {scene.scene_id}: changed by a shard"
    path.unlink()


def check_damaged_files(reader: Any, raw: Path, tmp_path: Path, seed: int = 0) -> None:
    """Check that every damage to a file gives valid scenes, or errors that name the file.

    The first file of each name pattern in `raw` (names without digits) is damaged in all ways of
    `damages(seed)`. Content that is lost completely must never give another scene than before.
    """
    before = {split: _scenes(read_all(reader, raw, split)) for split in reader.splits(raw)}
    folder = tmp_path / "damaged" / "raw"
    shutil.copytree(raw, folder)
    for file in example_files(raw):
        new: list[Scene] = []
        copy = folder / file.relative_to(raw)
        for name, damage in damages(seed).items():
            damage(copy)
            for split, known in before.items():
                label = f"{file.name}, {name}, split {split}"
                outcomes = read_all(reader, folder, split)
                check_messages(outcomes, folder, label)
                changed = _without(_scenes(outcomes), known)
                if name in LOST:
                    assert outcomes, f"{label}: the input is no longer listed"
                    assert not changed, f"{label}: gave a scene"
                new += changed
            _restore(file, copy)
        if new:
            check_round_trip(new, tmp_path)


def _restore(file: Path, copy: Path) -> None:
    """Replace whatever a damage has left of a copy by the file, with its time of change."""
    if copy.is_dir() and not copy.is_symlink():
        copy.rmdir()
    else:
        copy.unlink(missing_ok=True)
    shutil.copy2(file, copy)


def _without(scenes: list[Scene], known: list[Scene]) -> list[Scene]:
    """The scenes that are not equal to a known one."""
    new = []
    for scene in scenes:
        if not any(scenes_equal(scene, other) for other in known):
            new.append(scene)
    return new


def _scenes(outcomes: dict[str, Outcome]) -> list[Scene]:
    return [outcome for outcome in outcomes.values() if isinstance(outcome, Scene)]


def check_messages(outcomes: dict[str, Outcome], raw: Path, label: str = "") -> None:
    """Check that each error message is one printable line that names a file or a scene."""
    starts_with_name = re.compile(rf"({re.escape(str(raw))}|scene ).*: .")
    for item, message in outcomes.items():
        if isinstance(message, Scene):
            continue
        reason = message.replace(f"{raw}{os.sep}", "")
        where = f"{label}: {item}: {reason[:MAX_REASON]!r}:"
        assert reason.isprintable(), f"{where} not one printable line"
        assert len(reason) < MAX_REASON, f"{where} {len(reason)} characters"
        assert starts_with_name.match(message), f"{where} names no file"


def read_all(reader: Any, raw: Path, split: str) -> dict[str, Outcome]:
    """Read all inputs of a split: by name, the scene or the message of its SceneError.

    Other exceptions are raised.
    """
    try:
        items = reader.inputs(raw, split)
    except TrajformerError as error:
        return {split: str(error)}
    outcomes: dict[str, Outcome] = {}
    for item in items:
        try:
            if item.problem:
                raise SceneError(item.problem)
            outcomes[str(item)] = reader.read(item, split, raw).validate()
        except SceneError as error:
            outcomes[str(item)] = str(error)
    return outcomes


def example_files(raw: Path) -> Iterator[Path]:
    """The first file of each name pattern below a folder.

    The pattern is the name without digits and hexadecimal ids.
    """
    by_pattern: dict[str, Path] = {}
    for path in sorted(raw.rglob("*")):
        pattern = re.sub(r"[0-9a-f-]{8,}|\d+", "#", path.name)
        if path.is_file():
            by_pattern.setdefault(pattern, path)
    yield from sorted(by_pattern.values())


# ---- damages ---------------------------------------------------------------------------------


def change_bytes(change: Callable[[bytes], bytes]) -> Damage:
    """Replace the content of a file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def replace_by(create: Callable[[Path], object]) -> Damage:
    """Remove the file and create something else in its place."""

    def damage(path: Path) -> None:
        path.unlink()
        create(path)

    return damage


LOST: dict[str, Damage] = {  # no content remains
    "empty": change_bytes(lambda data: b""),
    "zero bytes": change_bytes(lambda data: bytes(len(data))),
    "blank lines": change_bytes(lambda data: b"\n \n\t\n"),
    "random bytes": change_bytes(lambda data: random.Random(0).randbytes(len(data))),
    "gzip": change_bytes(gzip.compress),
    "utf-16": change_bytes(lambda data: data.decode("latin-1").encode("utf-16")),
    "other json": change_bytes(lambda data: b'{"x": [1, 2]}'),
    "1 TB": lambda path: os.truncate(path, 1 << 40),
}
SPECIAL: dict[str, Damage] = {  # in place of the file
    "missing": Path.unlink,
    "folder": replace_by(Path.mkdir),
    "pipe": replace_by(os.mkfifo),
    "endless device": replace_by(lambda path: path.symlink_to("/dev/zero")),
    "dangling link": replace_by(lambda path: path.symlink_to("missing")),
    "circular link": replace_by(lambda path: path.symlink_to(path.name)),
}
if os.geteuid():  # the superuser can read all files
    SPECIAL["unreadable"] = lambda path: path.chmod(0)


def damages(seed: int) -> dict[str, Damage]:
    """Damages by name: lost content, special files, truncation, and a few random edits."""
    rng = random.Random(seed)
    cuts = {}
    for fraction in (0.001, 0.3, 0.6, 0.9, 0.999):
        cuts[f"truncated to {fraction:.3g}"] = truncate(fraction)
    edits = {f"random edit {number}": change_bytes(random_edit(rng)) for number in range(8)}
    return LOST | SPECIAL | cuts | edits


def truncate(fraction: float) -> Damage:
    """Keep the first part of a file."""
    return lambda path: os.truncate(path, int(fraction * path.stat().st_size))


def random_edit(rng: random.Random) -> Callable[[bytes], bytes]:
    """One to four random edits of bytes or words: flip, overwrite, drop, insert or truncate."""
    seeds = [rng.getrandbits(32) for _ in range(rng.randint(1, 4))]
    return lambda data: reduce(_edit, map(random.Random, seeds), data)


def _edit(data: bytes, rng: random.Random) -> bytes:
    """One random edit of at least one byte."""
    if not data:
        return data
    first = 0
    if rng.random() < 0.3:
        first = max(0, len(data) - 4096)  # binary tables describe their content at the end
    start = rng.randrange(first, len(data))
    end = min(len(data), start + rng.choice([1, 2, 4, 8, 64, 512, 4096, 65536]))
    before = data[:start]
    after = data[end:]

    # Words near the start.
    offset = max(0, start - 200)
    words = list(re.finditer(rb"[^\s,;=\"<>/]+", data[offset : start + 200]))
    match rng.choice(["flip", "fill", "drop", "insert", "truncate", "word", "word", "word"]):
        case "word" if words:
            word = rng.choice(words)
            replacement = rng.choice(WORDS).encode()
            return data[: offset + word.start()] + replacement + data[offset + word.end() :]
        case "flip":
            flipped = data[start] ^ 1 << rng.randrange(8)
            return before + bytes([flipped]) + data[start + 1 :]
        case "fill":
            value = rng.choice([0, 255, rng.randrange(256)])
            return before + bytes([value]) * (end - start) + after
        case "insert":
            other = rng.randrange(len(data))
            return before + data[other : other + end - start] + data[start:]
        case "truncate":
            return before
    return before + after
