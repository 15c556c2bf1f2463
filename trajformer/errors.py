"""Errors that a user can act on; the command line prints each as one line."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received, as at the end of a cluster job.

    The command line ends with status 143 instead of 130.
    """


class TrajformerError(Exception):
    """An incorrect option or a broken input; the message names the file and the field."""


class SceneError(TrajformerError):
    """One scene cannot be used; `preprocess` counts it, lists it and continues with the others."""


class StoreError(TrajformerError):
    """A store is missing, truncated, or has another schema version."""


class CheckpointError(TrajformerError):
    """A file is not a checkpoint of this project, or does not fit its model."""


class TrajformerWarning(UserWarning):
    """Usable input that is probably a mistake; the command line prints it as one line."""


class ConfigError(TrajformerError):
    """A field of a config has a value outside its range.

    Attributes:
        field: name of the field.
        reason: its value and the allowed range.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
