"""Features of modes to a Gaussian mixture over futures (MultiPath, Wayformer)."""

from __future__ import annotations

from torch import Tensor, nn

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.models.horizon import coast

_REACH = 5.0  # log sigma stays within +-5: 7 mm to 150 m


class MixtureHead(nn.Module):
    """Two linear layers: a mode's logit, and mean and log sigma of both coordinates at each step (diagonal covariance).

    Readings taken: what the layer gives for the mean are steps that are summed up and added to the place where the target
    would be at constant velocity. Log sigma is bounded smoothly, by 5 tanh(x / 5), so that a gradient always leads back.
    """

    def __init__(self, width: int, num_future: int) -> None:
        super().__init__()
        self.num_future = num_future
        self.score = nn.Linear(width, 1)
        self.gaussian = nn.Linear(width, num_future * 4)

    def forward(self, batch: SceneBatch, x: Tensor) -> Forecast:
        """Features [B, S, K, D] of the modes of every target to a forecast in its own frame, with sigma as `scale`."""
        step, log_sigma = self.gaussian(x).float().unflatten(-1, (self.num_future, 4)).chunk(2, -1)
        sigma = (_REACH * (log_sigma / _REACH).tanh()).exp()
        logit, pose = self.score(x).squeeze(-1).float(), batch.pose[:, : batch.num_targets]
        return Forecast(coast(batch) + step.cumsum(-2), logit, Frame.AGENT, pose, sigma)
