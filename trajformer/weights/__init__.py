"""Published weights of other projects, converted into checkpoints of this one: a file a system, a function a layout."""
