"""Reference heads on the shared core, one short file each: what the attention core does outside traffic."""
