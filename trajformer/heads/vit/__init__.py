"""Vision Transformer."""
