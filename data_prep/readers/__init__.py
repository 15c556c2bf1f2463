"""Readers of raw data sets."""
