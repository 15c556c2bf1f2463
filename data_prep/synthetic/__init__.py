"""Synthetic traffic scenes in the Argoverse 2 motion-forecasting layout.

``synthesize`` writes a data set; ``simulate_scene`` makes one scene from one seed;
``simulate_branches`` makes several futures of one past. Units are metres, seconds and radians.

A scene is made in this order: ``layout`` draws streets and ``lanes`` their lanes (a ``network``);
``vehicles`` and ``pedestrians`` put agents on ``routes``, as arrays in ``paths``; ``traffic``
simulates them; ``world`` computes their true states; ``sensor`` records tracks; ``scene`` holds the
result; ``argoverse2_files`` and ``dataset`` write it.
"""

from data_prep.synthetic.branches import simulate_branches
from data_prep.synthetic.dataset import synthesize
from data_prep.synthetic.scene import SyntheticScene, scene_identity, simulate_scene

__all__ = ["SyntheticScene", "scene_identity", "simulate_branches", "simulate_scene", "synthesize"]
