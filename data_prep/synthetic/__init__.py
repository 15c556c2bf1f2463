"""Synthetic traffic scenes in the Argoverse 2 motion-forecasting layout.

``synthesize`` writes a data set; ``simulate_scene`` makes one scene from one seed; ``simulate_branches`` makes several
futures of one past. Units are metres, seconds and radians.

A scene is made in this order: ``layout`` draws a street network (``network``), ``agents`` puts vehicles and pedestrians
on it with ``routes``, ``traffic`` simulates them, ``world`` computes their true states, ``observe`` records tracks.
"""

from data_prep.synthetic.dataset import synthesize
from data_prep.synthetic.scene import SyntheticScene, scene_identity, simulate_branches, simulate_scene

__all__ = ["SyntheticScene", "scene_identity", "simulate_branches", "simulate_scene", "synthesize"]
