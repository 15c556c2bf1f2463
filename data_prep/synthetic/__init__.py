"""Synthetic traffic scenes in the Argoverse 2 motion-forecasting layout.

``synthesize`` writes a data set; ``simulate_scene`` makes one scene from one seed, ``write_scene`` writes it;
``simulate_branches`` makes one past with several futures.
Streets are random (``layout``), traffic follows the intelligent driver model with right of way and random
turns (``traffic``), and a vehicle with imperfect sensors records it (``observe``). Metres, seconds, radians.
"""

from data_prep.synthetic.branches import simulate_branches
from data_prep.synthetic.make import synthesize
from data_prep.synthetic.scene import SyntheticScene, scene_identity, simulate_scene
from data_prep.synthetic.write import write_scene

__all__ = ["SyntheticScene", "scene_identity", "simulate_branches", "simulate_scene", "synthesize", "write_scene"]
