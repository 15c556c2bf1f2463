"""Wayformer."""
