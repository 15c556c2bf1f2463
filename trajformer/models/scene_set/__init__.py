"""Scene set."""
