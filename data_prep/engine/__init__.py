"""Preparation of raw data sets."""
