"""Pictures of scenes, forecasts and attention weights: every function draws onto a given Axes and returns it."""
