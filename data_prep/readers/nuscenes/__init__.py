"""Reader of nuScenes prediction."""
