"""Synthetic traffic scenes in the Argoverse 2 motion-forecasting layout.

``synthesize`` writes a data set; ``simulate_scene`` makes one scene from one seed; ``simulate_branches`` makes several
futures of one past. Units are metres, seconds and radians.

A scene is made in this order: ``network`` draws streets, ``agents`` puts vehicles and pedestrians on routes along them,
``traffic`` simulates these, ``world`` computes their true states and records tracks, ``dataset`` writes the files.
"""

from data_prep.synthetic.dataset import (
    SyntheticScene,
    scene_identity,
    simulate_branches,
    simulate_scene,
    synthesize,
)

__all__ = ["SyntheticScene", "scene_identity", "simulate_branches", "simulate_scene", "synthesize"]
