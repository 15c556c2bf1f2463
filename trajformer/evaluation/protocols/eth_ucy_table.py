"""The ETH/UCY table: published figures with their sources, ours beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trajformer.evaluation.protocols.eth_ucy import COUNTS, K

SCENES = tuple(COUNTS)
_COLUMNS = (*SCENES, "mean")
_WIDTH = 13  # of a column: "0.123/0.456" and some room
Figures = Mapping[str, Mapping[str, float]]  # by scene or "mean", and by name


@dataclass(frozen=True)
class Published:
    """A published row: ADE and FDE of the five scenes (none where only the mean was given), their mean, where it is from."""

    name: str
    scenes: tuple[tuple[float, float], ...]
    mean: tuple[float, float]
    source: str


BEST_OF_20 = (
    Published(
        "Social-GAN",
        ((0.87, 1.62), (0.67, 1.37), (0.76, 1.52), (0.35, 0.68), (0.42, 0.84)),
        (0.61, 1.21),
        "Gupta et al. 2018",
    ),
    Published(
        "Trajectron++ (leak fixed)",
        ((0.67, 1.18), (0.18, 0.28), (0.30, 0.54), (0.25, 0.41), (0.18, 0.32)),
        (0.32, 0.55),
        "Salzmann et al. 2020, corrected in their repository",
    ),
    Published(
        "AgentFormer (fixed)",
        ((0.45, 0.75), (0.14, 0.22), (0.25, 0.45), (0.18, 0.30), (0.14, 0.24)),
        (0.23, 0.39),
        "Yuan et al. 2021, corrected in their repository",
    ),
    Published(
        "MemoNet",
        ((0.40, 0.61), (0.11, 0.17), (0.24, 0.43), (0.18, 0.32), (0.14, 0.24)),
        (0.21, 0.35),
        "Xu et al. 2022",
    ),
    Published(
        "EqMotion",
        ((0.40, 0.61), (0.12, 0.18), (0.23, 0.43), (0.18, 0.32), (0.13, 0.23)),
        (0.21, 0.35),
        "Xu et al. 2023",
    ),
    Published(
        "SocialVAE",
        ((0.41, 0.58), (0.13, 0.19), (0.21, 0.36), (0.17, 0.29), (0.13, 0.22)),
        (0.21, 0.33),
        "Xu, Hayet and Karamouzas 2022",
    ),
    Published(
        "SingularTrajectory",
        ((0.35, 0.42), (0.13, 0.19), (0.25, 0.44), (0.19, 0.32), (0.15, 0.25)),
        (0.21, 0.32),
        "Bae et al. 2024",
    ),
    Published(
        "MoFlow",
        ((0.40, 0.57), (0.11, 0.17), (0.23, 0.39), (0.15, 0.26), (0.12, 0.22)),
        (0.20, 0.32),
        "Fu et al. 2025",
    ),
    Published(
        "PPT",
        ((0.36, 0.51), (0.11, 0.15), (0.22, 0.40), (0.17, 0.30), (0.12, 0.21)),
        (0.20, 0.31),
        "Lin et al. 2024",
    ),
)
MOST_PROBABLE = (
    Published("Trajectron++", (), (0.52, 1.11), "Salzmann et al. 2020"),
    Published("SingularTrajectory", (), (0.47, 0.90), "Bae et al. 2024"),
)


def table(models: Mapping[str, Figures], recorded: Mapping[str, float]) -> str:
    """The tables as text.

    Args:
        models: by label, figures by scene and, where all five are there, "mean".
        recorded: collision rate of the recordings by scene, and its "mean".
    """
    width = max(len(name) for name in [*models, *(row.name for row in BEST_OF_20)])
    lines = ["ETH/UCY, leave one scene out: 8 frames observed, 12 to predict (0.4 s each), all test windows, metres"]

    def section(title: str, published: Sequence[Published], names: tuple[str, str]) -> None:
        lines.extend(["", title, " " * width + "".join(f"{name:>{_WIDTH}}" for name in _COLUMNS)])
        lines.extend(_line(row.name, width, _published(row)) + f"  {row.source}" for row in published)
        lines.extend(_line(label, width, [_pair(figures.get(c), names) for c in _COLUMNS]) for label, figures in models.items())

    section(f"best of {K}, minima taken separately: ADE/FDE", BEST_OF_20, (f"ADE_{K}", f"FDE_{K}"))
    section("most probable mode: ADE/FDE", MOST_PROBABLE, ("ADE_1", "FDE_1"))
    section(f"the mode of {K} with the best ADE: ADE/FDE", (), (f"ADE_{K}", f"FDE_at_best_ADE_{K}"))
    section(f"best of {K} worlds, minima taken separately: JADE/JFDE", (), (f"JADE_{K}", f"JFDE_{K}"))
    title = f"pedestrians who collide (under 0.2 m from another one's centre), mean over {K} worlds, percent"
    lines += ["", title, " " * width + "".join(f"{name:>{_WIDTH}}" for name in _COLUMNS)]
    rates = {label: {s: f[f"collision_rate_{K}"] for s, f in figures.items() if f} for label, figures in models.items()}
    for label, rate in ({"recorded": recorded} | rates).items():
        lines.append(_line(label, width, [f"{100 * rate[c]:.2f}" if c in rate else "-" for c in _COLUMNS]))
    return "\n".join(lines)


def _line(label: str, width: int, cells: Sequence[str]) -> str:
    return f"{label:<{width}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _pair(figures: Mapping[str, float] | None, names: tuple[str, str]) -> str:
    return "/".join(f"{figures[name]:.3f}" for name in names) if figures else "-"


def _published(row: Published) -> list[str]:
    scenes = row.scenes or (None,) * len(SCENES)
    return ["-" if pair is None else f"{pair[0]:.2f}/{pair[1]:.2f}" for pair in (*scenes, row.mean)]
