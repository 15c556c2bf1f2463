"""Errors that a user can act on; the command line prints them as one line, without a traceback."""


class TrajformerError(Exception):
    """A user's mistake or a broken input: the message names the file and the field."""


class SceneError(TrajformerError):
    """One scene cannot be used; `preprocess` counts and lists it and goes on with the others."""


class StoreError(TrajformerError):
    """A store is missing, truncated, or of another schema version."""


class CheckpointError(TrajformerError):
    """A file is not a checkpoint of this project, or does not fit the model it names."""
