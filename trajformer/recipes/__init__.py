"""Recipes and checkpoints."""
