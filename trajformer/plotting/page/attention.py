"""Attention of targets as header and streams of a packed scene.

A row is one head of one layer of one target, or first the mean over the heads. It has its largest
shares only, as multiples of 0.001, at most `MAX_OF_MEAN` or `MAX_OF_HEAD`. A token is an agent of
the scene, or the number of agents plus the number of a part of a polyline.
"""

from typing import Any

import numpy as np

from trajformer.evaluation.attention import SceneAttention
from trajformer.plotting.page.streams import differences, quantize
from trajformer.scenes.scene import Scene

SHARE_STEP = 0.001
MAX_OF_MEAN = 24  # shares of a row
MAX_OF_HEAD = 12


def encode_attention(
    scene: Scene, attention: SceneAttention
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and streams of the attention of a scene; parts without a share are left out."""
    sources = attention.sources
    first_part = len(sources.agent)
    rows = _rows(attention)
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *[index for index, _ in rows]]))
    parts = used[used >= first_part] - first_part

    # tokens of the model to tokens of the page
    number = np.zeros(first_part + len(sources.polyline), np.int64)
    number[:first_part] = sources.agent
    number[first_part + parts] = scene.num_agents + np.arange(len(parts))

    counts = []
    tokens = [np.zeros(0, np.int64)]
    shares = [np.zeros(0, np.int64)]
    for index, share in rows:
        order = number[index].argsort()
        counts.append(len(index))
        tokens.append(number[index][order])
        shares.append(share[order])
    lengths = np.array(counts, np.int64)
    num_targets = len(attention.shares[0])
    header = {
        "target": sources.agent[:num_targets].tolist(),
        "layers": [
            {"name": name, "heads": share.shape[1]}
            for name, share in zip(attention.layers, attention.shares, strict=True)
        ],
    }
    streams = {
        "attentionLine": differences(sources.polyline[parts], np.array([len(parts)]), 1),
        "attentionPart": sources.part[parts],
        "attentionParts": sources.parts[parts],
        "attentionCount": lengths,
        "attentionToken": differences(np.concatenate(tokens), lengths, 1),
        "attentionShare": np.concatenate(shares),
    }
    return header, streams


def _rows(attention: SceneAttention) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens of the model and multiples of `SHARE_STEP` of each row, by target, layer and head."""
    rows = []
    for target in range(len(attention.shares[0])):
        for share in attention.shares:
            heads = share[target]  # [heads, A + M]
            rows.append(_largest(heads.mean(0), MAX_OF_MEAN))
            for head in heads:
                rows.append(_largest(head, MAX_OF_HEAD))
    return rows


def _largest(share: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and rounded values of the `count` largest shares that are not rounded to zero."""
    index = np.argsort(-share, kind="stable")[:count]
    rounded = quantize(share[index], SHARE_STEP)
    return index[rounded > 0], rounded[rounded > 0]
