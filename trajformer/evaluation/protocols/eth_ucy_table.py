"""The published table of ETH/UCY with rows of models."""

from collections.abc import Mapping, Sequence

from trajformer.evaluation.protocols.benchmark import Row, as_text
from trajformer.evaluation.protocols.eth_ucy import COUNTS, K, SceneMetrics

_COLUMNS = (*COUNTS, "mean")
_LATER = ", corrected in their repository"
# Name, ADE/FDE of the five scenes and their mean (only the mean if the scenes were not given), and
# source.
BEST_OF_20 = (
    (
        "Social-GAN",
        "0.87/1.62 0.67/1.37 0.76/1.52 0.35/0.68 0.42/0.84 0.61/1.21",
        "Gupta et al. 2018",
    ),
    (
        "Trajectron++ (leak fixed)",
        "0.67/1.18 0.18/0.28 0.30/0.54 0.25/0.41 0.18/0.32 0.32/0.55",
        f"Salzmann et al. 2020{_LATER}",
    ),
    (
        "AgentFormer (fixed)",
        "0.45/0.75 0.14/0.22 0.25/0.45 0.18/0.30 0.14/0.24 0.23/0.39",
        f"Yuan et al. 2021{_LATER}",
    ),
    (
        "MemoNet",
        "0.40/0.61 0.11/0.17 0.24/0.43 0.18/0.32 0.14/0.24 0.21/0.35",
        "Xu et al. 2022",
    ),
    (
        "EqMotion",
        "0.40/0.61 0.12/0.18 0.23/0.43 0.18/0.32 0.13/0.23 0.21/0.35",
        "Xu et al. 2023",
    ),
    (
        "SocialVAE",
        "0.41/0.58 0.13/0.19 0.21/0.36 0.17/0.29 0.13/0.22 0.21/0.33",
        "Xu, Hayet and Karamouzas 2022",
    ),
    (
        "SingularTrajectory",
        "0.35/0.42 0.13/0.19 0.25/0.44 0.19/0.32 0.15/0.25 0.21/0.32",
        "Bae et al. 2024",
    ),
    (
        "MoFlow",
        "0.40/0.57 0.11/0.17 0.23/0.39 0.15/0.26 0.12/0.22 0.20/0.32",
        "Fu et al. 2025",
    ),
    (
        "PPT",
        "0.36/0.51 0.11/0.15 0.22/0.40 0.17/0.30 0.12/0.21 0.20/0.31",
        "Lin et al. 2024",
    ),
)
MOST_PROBABLE = (
    ("Trajectron++", "- - - - - 0.52/1.11", "Salzmann et al. 2020"),
    ("SingularTrajectory", "- - - - - 0.47/0.90", "Bae et al. 2024"),
)
_TITLE = (
    "ETH/UCY, leave one scene out: 8 frames observed, 12 to predict (0.4 s each), "
    "all test windows, metres"
)
_COLLISIONS = (
    "pedestrians who collide (under 0.2 m from another one's centre), "
    f"mean over {K} worlds, percent"
)


def published_table(models: Mapping[str, SceneMetrics], recorded: Mapping[str, float]) -> str:
    """The tables of published results with rows of the given models, as text.

    `models` are metrics by label of the model and by scene, with "mean" if all five scenes are
    present; `recorded` is the collision rate of the recordings by scene, and "mean".
    """
    parts = [
        _TITLE,
        _section(
            f"best of {K}, minima taken separately: ADE/FDE",
            BEST_OF_20,
            models,
            (f"ADE_{K}", f"FDE_{K}"),
        ),
        _section("most probable mode: ADE/FDE", MOST_PROBABLE, models, ("ADE_1", "FDE_1")),
        _section(
            f"the mode of {K} with the best ADE: ADE/FDE",
            (),
            models,
            (f"ADE_{K}", f"FDE_at_best_ADE_{K}"),
        ),
        _section(
            f"best of {K} worlds, minima taken separately: JADE/JFDE",
            (),
            models,
            (f"JADE_{K}", f"JFDE_{K}"),
        ),
        _collision_section(models, recorded),
    ]
    return "\n\n".join(parts)


def _section(
    title: str, published: Sequence[Row], models: Mapping[str, SceneMetrics], names: Sequence[str]
) -> str:
    """A table with cells like "ADE/FDE" of the metrics `names`."""
    rows = list(published)
    for label, metrics in models.items():
        cells = [_cell(metrics.get(column), names) for column in _COLUMNS]
        rows.append((label, " ".join(cells), ""))
    return f"{title}\n{as_text(_COLUMNS, rows)}"


def _cell(metrics: Mapping[str, float] | None, names: Sequence[str]) -> str:
    if not metrics:
        return "-"
    return "/".join(f"{metrics[name]:.3f}" for name in names)


def _collision_section(models: Mapping[str, SceneMetrics], recorded: Mapping[str, float]) -> str:
    rates: dict[str, Mapping[str, float]] = {"recorded": recorded}
    for label, by_scene in models.items():
        name = f"collision_rate_{K}"
        rates[label] = {scene: row[name] for scene, row in by_scene.items() if row}
    rows = []
    for label, rate in rates.items():
        cells = [f"{100 * rate[c]:.2f}" if c in rate else "-" for c in _COLUMNS]
        rows.append((label, " ".join(cells), ""))
    return f"{_COLLISIONS}\n{as_text(_COLUMNS, rows)}"
