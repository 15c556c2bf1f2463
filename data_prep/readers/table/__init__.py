"""Tables of tracks."""
