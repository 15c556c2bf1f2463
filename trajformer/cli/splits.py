"""The split that commands use without --split."""

from pathlib import Path

from trajformer.scenes.manifest import store_splits

DEFAULT_SPLIT = "val"
SPLIT_HELP = f"default: the only split of the store, or {DEFAULT_SPLIT}"


def default_split(store: Path) -> str:
    """The only split of a store, such as `all` of own recordings, or `DEFAULT_SPLIT`."""
    splits = store_splits(store)
    return splits[0] if len(splits) == 1 else DEFAULT_SPLIT
