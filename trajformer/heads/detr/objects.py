"""Objects in pixels from the predictions of DETR, and their attention maps."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from trajformer.core.multihead import recorded_weights
from trajformer.data.batch import TensorRecord
from trajformer.heads.detr.boxes import suppress, to_corners
from trajformer.heads.detr.model import Detections, Detr


@dataclass(frozen=True, eq=False)
class Objects(TensorRecord):
    """Objects in one image, in order of decreasing score."""

    box: Tensor  # corners [N, 4], pixels
    score: Tensor  # [N] in 0..1
    label: Tensor  # int64 [N]
    query: Tensor  # int64 [N], the query that predicted the object

    def rows(self) -> list[tuple[list[float], float, int]]:
        """Corners, score and class of each object."""
        columns = (self.box.tolist(), self.score.tolist(), self.label.tolist())
        return list(zip(*columns, strict=True))

    def first(self, count: int) -> Self:
        """The `count` objects with the highest scores."""
        return self.map(lambda values: values[:count])


def postprocess(
    detections: Detections, size: Tensor, *, score: float = 0.0, nms: float | None = None
) -> list[Objects]:
    """Objects of each image with their most probable class.

    Args:
        detections: predictions for B images.
        size: height and width of the images in pixels, int [B, 2].
        score: objects have a higher score.
        nms: None uses the last decoder layer without suppression. Otherwise the predictions of all
            layers are joined by non-maximum suppression with this IoU threshold.
    """
    layers = (detections,) if nms is None else (detections, *detections.auxiliary)
    logit = torch.cat([one.logit for one in layers], 1)
    box = torch.cat([one.box for one in layers], 1)
    probability = logit.float().softmax(-1)[..., :-1]  # without "no object"
    best, label = probability.max(-1)
    scale = size.flip(-1).repeat(1, 2)[:, None].to(best)  # [B, 1, 4]: width, height, width, height
    corners = to_corners(box.float()) * scale

    queries = detections.logit.shape[1]
    results = []
    for image_box, image_score, image_label in zip(corners, best, label, strict=True):
        if nms is None:
            order = image_score.argsort(descending=True, stable=True)
        else:
            order = suppress(image_box, image_score, image_label, nms)
        order = order[image_score[order] > score]
        query = order % queries
        results.append(Objects(image_box[order], image_score[order], image_label[order], query))
    return results


@torch.no_grad()
def attention_maps(
    model: Detr, pixels: Tensor, size: Tensor, objects: Objects
) -> tuple[Tensor, Tensor]:
    """Attention maps of n objects in one image over the feature grid, averaged over heads.

    Args:
        model: the detector.
        pixels: the image without padding, float [1, 3, H, W].
        size: height and width of the image in pixels of the objects, int [1, 2].
        objects: detected objects.

    Returns:
        Two maps, float [n, h, w] on the CPU: attention of the query of each object in the last
        decoder layer, and attention of the feature at the center of each box in the last encoder
        layer.
    """
    with recorded_weights(model) as record:
        rows, columns = model.backbone(pixels)[0].shape[-2:]
        model(pixels)
    objects = objects.to("cpu")

    last_decoder = f"decoder.layers.{len(model.decoder.layers) - 1}.cross_attention.sublayer"
    decoder = _mean_over_heads(record[last_decoder])[objects.query]

    # The feature at the center of each box.
    grid = torch.tensor([rows, columns])
    center = (objects.box[:, :2] + objects.box[:, 2:]).flip(-1) / 2  # y, x
    cell = (center / size.cpu() * grid).long()
    cell = cell.clamp(min=torch.zeros_like(grid), max=grid - 1)
    last_encoder = f"encoder.layers.{len(model.encoder.layers) - 1}.attention.sublayer"
    encoder = _mean_over_heads(record[last_encoder])[cell[:, 0] * columns + cell[:, 1]]

    shape = (rows, columns)
    return decoder.unflatten(-1, shape), encoder.unflatten(-1, shape)


def _mean_over_heads(recorded: list[Tensor]) -> Tensor:
    """Weights [L, S] of one image from recorded weights [1, heads, L, S]."""
    return recorded[0][0].mean(0).float().cpu()
