"""Contents of prepared stores and the command that prepares them."""

from pathlib import Path


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store by its name, hidden files too.

    Left out are the records of the raw folder, which have its path.
    """
    files = {}
    for path in store.rglob("*"):
        if path.is_file() and path.name != "source.json":
            files[path.relative_to(store).as_posix()] = path.read_bytes()
    return files


def preprocess_words(*arguments: object) -> list[str]:
    """The words of `python -m trajformer.cli preprocess ARGUMENTS`."""
    return ["-m", "trajformer.cli", "preprocess", *map(str, arguments)]
