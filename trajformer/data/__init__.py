"""Samples, batches and forecasts."""
