"""Metrics of forecasts."""
