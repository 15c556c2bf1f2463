"""The shared attention core: tokens, masks and positions, without any knowledge of traffic."""
