"""Losses that several models share."""
