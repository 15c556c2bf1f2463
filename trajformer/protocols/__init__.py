"""Published protocols: which scenes are scored by which figures, and what others reached on them."""
