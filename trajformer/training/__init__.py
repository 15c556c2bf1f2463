"""Training on Lightning: recipe, data, module, optimiser, safe checkpoints."""
