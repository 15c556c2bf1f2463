"""Boxes and arrows of all models, drawn by `tools/draw_models.py`; they follow the modules in trajformer/models.

Letters: B scenes, A agents, S targets, T steps, H history, F future, M polylines, P points, K modes, Q queries, D width,
Z latents, n the nearest neighbors or lanes. A box with two parts applies both in every block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

COLORS = {  # by part of the core
    "input": "#FFFFFF",
    "learned queries": "#FFFFFF",
    "linear layers": "#E4E4E4",
    "LSTM": "#D8CBB8",
    "self-attention": "#A9D3F2",
    "cross-attention": "#F9CE96",
    "attention per mode": "#F0A9A0",
    "agent-aware attention": "#CDBBEA",
    "graph attention": "#A6DDC2",
    "squeeze-and-excite": "#F4E88B",
    "latent queries": "#9FE0E3",
    "clustering": "#D3DDB0",
    "loss": "#F6D3E4",
}
IN = ("input",)
LINEAR = ("linear layers",)
QUERIES = ("learned queries",)
SELF = ("self-attention",)
CROSS = ("cross-attention",)
BOTH = (*SELF, *CROSS)
AWARE = ("agent-aware attention",)
CLUSTER = ("clustering",)
LOSS = ("loss",)


@dataclass(frozen=True)
class Box:
    """A part of a model.

    Attributes:
        name: used by arrows.
        at: row, from the top, and column.
        title: first line of text.
        shape: second line of text.
        parts: keys of COLORS.
        span: number of columns.
    """

    name: str
    at: tuple[int, int]
    title: str
    shape: str
    parts: tuple[str, ...]
    span: int = 1


@dataclass(frozen=True)
class Drawing:
    """A model: boxes, and paths of arrows between them: "a>b>c" gives two arrows."""

    boxes: tuple[Box, ...]
    paths: tuple[str, ...]

    @property
    def edges(self) -> list[tuple[str, str]]:
        """Arrows as pairs of names."""
        return [pair for path in self.paths for pair in pairwise(path.split(">"))]


# fmt: off
DRAWINGS = {
    "mmtransformer": Drawing(
        (
            Box("history", (0, 0), "steps of every agent", "[B·A, H-1, 8]", IN),
            Box("lanes", (0, 1), "lanes near a target", "[B·S, n, P, 2]", IN),
            Box("others", (0, 2), "proposals of agents near", "[B·S, n, K·D]", IN),
            Box("step", (1, 0), "MLP, learned times", "[B·A, H-1, D]", LINEAR),
            Box("lane", (1, 1), "polyline subgraph", "[B·S, n, D]", LINEAR),
            Box("other", (1, 2), "MLP, relative poses", "[B·S, n, D]", LINEAR),
            Box("steps", (2, 0), "encoder of steps", "[B·A, H-1, D]", SELF),
            Box("road", (2, 1), "encoder of lanes", "[B·S, n, D]", SELF),
            Box("social", (2, 2), "encoder of neighbours", "[B·S, n, D]", SELF),
            Box("motion", (3, 0), "motion extractor", "[B, A, K, D]", BOTH),
            Box("map", (3, 1), "map aggregator", "[B, S, K, D]", BOTH),
            Box("meet", (3, 2), "social constructor", "[B, S, K, D]", BOTH),
            Box("queries", (4, 0), "K queries", "[K, D]", QUERIES),
            Box("loss", (4, 1), "set loss", "of every social layer", LOSS),
            Box("heads", (4, 2), "offsets and scores", "[B, S, K, F, 2], [B, S, K]", LINEAR),
        ),
        ("history>step>steps>motion", "lanes>lane>road>map", "others>other>social>meet", "queries>motion>map>meet>heads>loss"),
    ),
    "mmtransformer_rts": Drawing(
        (
            Box("scene", (0, 0), "steps, lanes, neighbours", "as mmTransformer reads them", IN),
            Box("queries", (0, 1), "K queries, N of a region", "[K, D], K = M · N", QUERIES),
            Box("ends", (0, 2), "end points for training", "in the frames of the agents", IN),
            Box("stack", (1, 0), "motion extractor, map aggregator, social constructor", "[B, S, K, D]", BOTH, 2),
            Box("means", (1, 2), "equal-size k-means", "or a fixed fan", CLUSTER),
            Box("heads", (2, 0), "offsets and scores", "[B, S, K, F, 2], [B, S, K]; 6 apart in inference", LINEAR, 2),
            Box("regions", (2, 2), "M regions", "[M, 3]: centre, weight", CLUSTER),
            Box("terms", (3, 0), "Huber and KL of all N of the true region", "cross-entropy of the M regions", LOSS, 2),
            Box("true", (3, 2), "region of the true end", "[B, S]", CLUSTER),
            Box("loss", (4, 0), "region loss: learned uncertainties", "of every social layer", LOSS, 2),
        ),
        ("scene>stack", "queries>stack>heads>terms>loss", "ends>means>regions>true>terms"),
    ),
    "agentformer": Drawing(
        (
            Box("past", (0, 0), "all agents at all steps", "[B, H·A, 4]", IN),
            Box("future", (0, 2), "their futures, in training", "[B, F·A, 4]", IN),
            Box("tokens", (1, 0), "linear, time concatenated", "[B, H·A, D]", LINEAR),
            Box("later", (1, 2), "linear, time concatenated", "[B, F·A, D]", LINEAR),
            Box("context", (2, 0), "context encoder", "[B, H·A, D]", AWARE),
            Box("sampler", (2, 1), "second stage: MLP", "A_k, b_k [B, K, A, Z]", LINEAR),
            Box("encoder", (2, 2), "future encoder", "[B, F·A, D], reads context", AWARE),
            Box("prior", (3, 0), "mean of an agent: prior", "[B, A, Z]", LINEAR),
            Box("latent", (3, 1), "K samples", "[B, K, A, Z]", IN),
            Box("posterior", (3, 2), "mean, MLP: posterior", "[B, A, Z]", LINEAR),
            Box("decoder", (4, 0), "future decoder: step after step, cached", "[B, K, F·A, D], reads context", AWARE, 2),
            Box("offset", (5, 0), "MLP: offsets from the last position", "[B, S, K, F, 2]", LINEAR, 2),
            Box("loss", (5, 2), "error, KL, best of K", "second stage: best, KL, spread", LOSS),
        ),
        (
            "past>tokens>context>sampler>latent",
            "future>later>encoder>posterior>latent",
            "context>prior>latent>decoder>offset>loss",
        ),
    ),
    "wayformer": Drawing(
        (
            Box("history", (0, 0), "history of a target", "[B·S, T, 1, C]", IN),
            Box("agents", (0, 1), "agents near, relative to it", "[B·S, T, n, C]", IN),
            Box("road", (0, 2), "lanes near, relative to it", "[B·S, n, P, 2]", IN),
            Box("past", (1, 0), "relu(Wx + b), position", "[B·S, T, 1, D]", LINEAR),
            Box("others", (1, 1), "relu(Wx + b), position", "[B·S, T, n, D]", LINEAR),
            Box("lanes", (1, 2), "polyline subgraph, position", "[B·S, 1, n, D]", LINEAR),
            Box("encoder", (2, 0), "scene encoder: early, late or hierarchical fusion, all axes at once or in turn",
                "[B·S, L, D]; optional latent queries reduce L", ("self-attention", "latent queries"), 3),
            Box("queries", (3, 0), "K queries", "[K, D]", QUERIES),
            Box("decoder", (3, 1), "decoder", "[B, S, K, D]", BOTH),
            Box("head", (3, 2), "Gaussian mixture", "[B, S, K, F, 2 + 2], [B, S, K]", LINEAR),
            Box("merge", (4, 1), "inference: merged modes", "to the requested number", CLUSTER),
            Box("loss", (4, 2), "mixture loss", "of the nearest mode", LOSS),
        ),
        (
            "history>past>encoder",
            "agents>others>encoder>decoder",
            "road>lanes>encoder",
            "queries>decoder>head>loss",
            "head>merge",
        ),
    ),
    "spatial_channel": Drawing(
        (
            Box("agents", (0, 0), "target and agents near", "[B·S, T, n, C]", IN),
            Box("lanes", (0, 2), "lanes near", "[B·S, n, P, 2]", IN),
            Box("token", (1, 0), "MLP, learned times", "[B·S, T·n, D]", LINEAR),
            Box("lane", (1, 2), "polyline subgraph", "[B·S, n, D]", LINEAR),
            Box("encoder", (2, 0), "encoder: channels are weighed between attention and feed-forward",
                "one sequence [B·S, L, D]; a channel is a feature or an agent", ("self-attention", "squeeze-and-excite"), 3),
            Box("queries", (3, 0), "K queries", "[K, D]", QUERIES),
            Box("decoder", (3, 1), "decoder", "[B, S, K, D]", BOTH),
            Box("heads", (3, 2), "offsets and scores", "[B, S, K, F, 2], [B, S, K]", LINEAR),
            Box("loss", (4, 2), "set loss", "of every decoder layer", LOSS),
        ),
        ("agents>token>encoder", "lanes>lane>encoder>decoder", "queries>decoder>heads>loss"),
    ),
    "lane_set": Drawing(
        (
            Box("history", (0, 0), "steps of every agent", "[B·A, H-1, 8]", IN),
            Box("lanes", (0, 1), "waypoints of lanes near", "[B, S, n, P, 5]", IN),
            Box("lstm", (1, 0), "history encoder", "[B, A, D]", ("LSTM",)),
            Box("points", (1, 1), "linear, norm, linear", "[B, S, n, P, D]", LINEAR),
            Box("near", (2, 0), "agents near, relative poses", "[B·S, n, D]", LINEAR),
            Box("lane", (3, 1), "each lane, relative to a target", "[B, S, n, D]", CROSS),
            Box("graph", (3, 0), "graph of agents", "[B, S, D], the target", SELF),
            Box("modes", (3, 2), "the lanes, for each mode", "[B, S, K, D]", ("attention per mode",)),
            Box("heads", (4, 1), "offsets and scores of [mode || target]",
                "[B, S, K, F, 2], [B, S, K]; scores detached", LINEAR, 2),
            Box("loss", (4, 0), "set loss", "one mode matched", LOSS),
        ),
        ("history>lstm>near>graph>lane>modes>heads>loss", "lanes>points>lane"),
    ),
    "gatformer": Drawing(
        (
            Box("history", (0, 0), "steps of every agent", "[B, A, H-1, 8]", IN),
            Box("near", (0, 1), "neighbours at each step", "poses, velocities [B, T, A]", IN),
            Box("lanes", (0, 2), "lanes, each in its frame", "[B, M, P, 2]", IN),
            Box("node", (1, 0), "MLP, learned times", "[B, T, A, D]", LINEAR),
            Box("edge", (1, 1), "edges: nearest first", "[E, D], relative poses", LINEAR),
            Box("lane", (1, 2), "polyline subgraph", "[B, M, D]", LINEAR),
            Box("graph", (2, 0), "sparse graph of agents and lanes, at each step",
                "[B, S, T, D]: the last layer updates targets only", ("graph attention",), 3),
            Box("time", (3, 0), "encoder of a target's steps", "[B·S, T, D]", SELF),
            Box("decoder", (3, 1), "decoder", "[B, S, K, D]", BOTH),
            Box("heads", (3, 2), "offsets and scores", "[B, S, K, F, 2], [B, S, K]", LINEAR),
            Box("queries", (4, 1), "K queries", "[K, D]", QUERIES),
            Box("loss", (4, 2), "set loss", "one mode matched", LOSS),
        ),
        ("history>node>graph>time>decoder>heads>loss", "near>edge>graph", "lanes>lane>graph", "queries>decoder"),
    ),
    "crowd": Drawing(
        (
            Box("history", (0, 0), "steps in the agent's frame", "[B·A, H, 6], scaled by pace", IN),
            Box("near", (0, 1), "neighbours of a target", "[B·S, n, 8]", IN),
            Box("step", (1, 0), "linear, learned times", "[B·A, H, D]", LINEAR),
            Box("token", (1, 1), "MLP", "[B·S, n, D]", LINEAR),
            Box("time", (2, 0), "encoder of steps", "[B, A, D], the last step", SELF),
            Box("social", (2, 1), "a target and its neighbours", "[B, S, D]", CROSS),
            Box("heads", (2, 2), "all K modes at once", "[B, S, K, F, 2], [B, S, K]", LINEAR),
            Box("loss", (1, 2), "set loss", "the nearest mode, the first", LOSS),
        ),
        ("history>step>time>social>heads>loss", "near>token>social"),
    ),
    "scene_set": Drawing(
        (
            Box("history", (0, 0), "steps of every agent", "[B·A, H-1, 8]", IN),
            Box("lanes", (0, 2), "lanes of the scene", "[B, n, P, 2]", IN),
            Box("step", (1, 0), "MLP, learned times", "[B·A, H-1, D]", LINEAR),
            Box("lane", (1, 2), "polyline subgraph", "[B, n, D]", LINEAR),
            Box("steps", (2, 0), "encoder of steps", "mean + position: [B, A, D]", SELF),
            Box("scene", (2, 1), "encoder of the scene", "[B, A + n, D], one frame", SELF, 2),
            Box("queries", (3, 0), "Q queries, or the agents", "[Q, D] or [B, A, D]", QUERIES),
            Box("decoder", (3, 1), "decoder", "[B, Q, D]", BOTH),
            Box("pointer", (3, 2), "mean position and velocity", "[B, Q, 4], of the agents", CROSS),
            Box("loss", (4, 0), "Hungarian matching", "of every decoder layer", LOSS),
            Box("heads", (4, 1), "trajectories from the current step; is it an agent?", "[B, Q, K, 1 + F, 2], [B, Q]", LINEAR, 2),
        ),
        ("history>step>steps>scene>decoder", "lanes>lane>scene>pointer", "queries>decoder>pointer>heads>loss", "decoder>heads"),
    ),
}
# fmt: on
