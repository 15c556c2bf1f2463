"""trajformer: multi-agent trajectory prediction on one shared attention core."""

__version__ = "0.1.0"
