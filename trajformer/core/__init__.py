"""The shared attention core: tokens, masks and positions. It knows nothing of traffic."""
