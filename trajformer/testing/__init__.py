"""Contract tests of models and readers, for this package and for packages that extend it."""
