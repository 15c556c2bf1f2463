"""Drone recordings in the layouts of inD, highD and SIND."""
