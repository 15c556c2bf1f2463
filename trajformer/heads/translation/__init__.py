"""Translation with a Transformer."""
