"""Detection data."""
