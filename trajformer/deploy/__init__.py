"""Models in a running system: live forecasts, export, and a runtime without torch."""
