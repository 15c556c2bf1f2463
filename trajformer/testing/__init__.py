"""Contract tests for models and readers; packages with own models or data sets can use them in their tests."""
