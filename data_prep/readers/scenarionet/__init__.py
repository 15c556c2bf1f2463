"""ScenarioNet data sets."""
