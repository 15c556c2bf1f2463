"""Pictures of scenes and forecasts: everything draws onto a given Axes and returns it."""
