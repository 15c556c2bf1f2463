"""mmTransformer."""
