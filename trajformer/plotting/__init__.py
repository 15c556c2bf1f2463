"""Pictures of scenes, forecasts and attention weights: functions draw onto a given Axes."""
