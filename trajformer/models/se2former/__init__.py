"""SE2Former."""
