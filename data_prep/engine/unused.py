"""Files of a raw folder that no reader uses, as inputs with a problem: they are listed as skipped.

A table in a sub-folder, a compressed copy, or lanes in a different format must not be left out
silently.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from data_prep.reader import Input, Reader, WithCompanions

MAX_DEPTH = 6  # of folders; a loop of links ends here
# Suffixes of files that may hold recordings, labels or maps.
SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("csv", "tsv", "txt", "parquet", "feather", "arrow", "ipc", "json", "jsonl", "geojson"),
        *("osm", "osm_xy", "xml", "xodr", "shp", "gpkg", "kml", "gpx", "pkl", "pickle", "npy"),
        *("npz", "h5", "hdf5", "mat", "xls", "xlsx", "ods", "tfrecord", "bag", "db3", "mcap"),
        *("sqlite", "db", "gz", "bz2", "xz", "zst", "zip", "7z", "rar", "tar", "tgz"),
    )
)
# Names of files about a data set, without suffix.
ABOUT = frozenset(
    ("readme", "license", "licence", "copying", "changelog", "notice", "citation", "requirements")
)
Listed = tuple[Path, str]  # path, and why it cannot be opened ("" if it can)


def unused_inputs(
    reader: Reader, raw: Path, used: Mapping[str, Sequence[Input]], folders: Iterable[Path]
) -> dict[str, list[Input]]:
    """The data files in folders that are neither inputs nor belong to them, by split.

    Args:
        reader: without a method `belongs`, nothing is listed.
        raw: the raw folder.
        used: the inputs of each split. A file outside of all splits is listed in the first one.
        folders: the folders to search, with their sub-folders.

    Returns:
        Several files of one folder share an input: the folder.
    """
    if not isinstance(reader, WithCompanions):
        return {}
    known = {item.path for items in used.values() for item in items}
    unused: dict[Path, list[Listed]] = defaultdict(list)  # by folder
    for folder in folders:
        for path, problem in _data_files(folder, known, lambda path: reader.belongs(raw, path)):
            unused[path.parent].append((path, problem))

    first_split = next(iter(used))
    inputs: dict[str, list[Input]] = defaultdict(list)
    for folder, files in sorted(unused.items()):
        top = folder.relative_to(raw).parts[:1]
        split = top[0] if top and top[0] in used else first_split
        inputs[split] += _inputs_of_folder(folder, files, reader)
    return inputs


def _inputs_of_folder(folder: Path, files: list[Listed], reader: Reader) -> Iterator[Input]:
    """One input for the files without a role, and one for each that cannot be opened."""
    expected = f"expected {reader.layout}"
    plain = [path for path, problem in files if not problem]
    if len(plain) == 1:
        yield Input(plain[0], problem=f"not used: {expected}")
    elif plain:
        yield Input(
            folder, problem=f"{len(plain)} files, such as {plain[0].name}, are not used: {expected}"
        )
    for path, problem in files:
        if problem:
            yield Input(path, problem=problem)


def _data_files(
    folder: Path, known: set[Path], belongs: Callable[[Path], bool], depth: int = 0
) -> Iterator[Listed]:
    """Data files below a folder, sorted, that are neither known nor belong to the data set."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        yield folder, f"cannot be read: {error.strerror}"
        return
    for entry in listed:
        path = folder / entry.name
        if entry.name.startswith(".") or path in known or belongs(path):
            continue
        if entry.is_dir():
            if path.suffix.lower() in SUFFIXES:
                yield path, "a folder, expected a file"
            elif depth < MAX_DEPTH:
                yield from _data_files(path, known, belongs, depth + 1)
        elif entry.is_symlink() and not path.exists():
            yield path, "cannot be read: a link to a missing file"
        elif path.suffix.lower() in SUFFIXES and path.stem.lower() not in ABOUT:
            yield path, ""
