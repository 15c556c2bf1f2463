"""SE2Former: `model` names the parts in their order."""
