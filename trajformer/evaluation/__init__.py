"""Metrics and evaluation."""
