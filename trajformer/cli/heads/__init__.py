"""Commands of the reference heads."""
