"""Compare two models on the same agents: mean difference of errors with a paired 95 % interval.

    trajformer evaluate --checkpoint runs/a_seed0/last.ckpt --store stores/av1 --csv a0.csv
    python tools/paired.py --first a0.csv a1.csv a2.csv --second b0.csv b1.csv b2.csv

Files of a model are runs with other seeds, which are averaged for each agent. The interval is a
bootstrap over scenes; the noise of seeds is in it only as far as the averages keep it. The first
model is better if the difference is negative. With `--cities STORE`, all cities have the same
weight in a mean, and the interval draws scenes within cities. With files of `evaluate --agents
all`, `--moved 3` compares all moving agents: on Argoverse 1 this halves the width of the interval.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from trajformer.errors import TrajformerError
from trajformer.scenes.store import SceneStore

AGENT = ["scenario_id", "track_id"]
COLUMNS = ["minADE6", "minFDE6", "MR6", "minFDE1"]


def read_agents(path: Path) -> pd.DataFrame:
    """A file of `evaluate --csv` by scene and track; ids may look like missing values ("NA")."""
    columns = pd.read_csv(path, nrows=0).columns
    missing_values = {name: [""] for name in columns.difference(AGENT)}
    types = dict.fromkeys(AGENT, str)
    table = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=missing_values)
    return table.set_index(AGENT)


def mean_errors(files: list[Path]) -> pd.DataFrame:
    """Errors of each agent, averaged over files.

    Raises TrajformerError: a file has other agents than the first one.
    """
    tables = [read_agents(path) for path in files]
    agents = tables[0].index
    for path, table in zip(files, tables, strict=True):
        if not table.index.sort_values().equals(agents.sort_values()):
            advice = "use the same split and --agents"
            raise TrajformerError(f"{path}: other agents than {files[0]}; {advice}")
    numbers = pd.concat([table.select_dtypes("number") for table in tables])
    return numbers.groupby(level=AGENT).mean()


def city_of_scenes(store: Path, split: str) -> dict[str, str]:
    """The city of each scene id. Raises TrajformerError: a scene has no city."""
    cities = {scene.scene_id: scene.city for scene in SceneStore(store, split)}
    if not all(cities.values()):
        problem = f"split '{split}' has scenes without a city"
        raise TrajformerError(f"{store}: {problem}; leave out --cities")
    return cities


def compare(
    first: list[Path],
    second: list[Path],
    columns: list[str],
    city: dict[str, str] | None = None,
    moved: float = 0.0,
) -> pd.DataFrame:
    """Means, difference and its interval for each column; scenes are drawn with all their agents.

    With the city of each scene id, the means of cities count the same. Only agents count that move
    at least `moved` metres in their future. Raises TrajformerError: the files have other agents, a
    scene is not in `city`, or a city has fewer than two scenes.
    """
    mean_errors([first[0], second[0]])  # checks that both have the same agents
    first_errors = mean_errors(first)
    second_errors = mean_errors(second)
    if moved:
        moving = first_errors.future_m >= moved
        first_errors = first_errors[moving]
        second_errors = second_errors[moving]

    agents_per_scene = first_errors.groupby(level=0).size()
    counts = agents_per_scene.to_numpy()
    groups = scene_groups(agents_per_scene.index, city, first[0])
    rows = []
    for column in columns:
        first_sums = first_errors[column].groupby(level=0).sum().to_numpy()
        second_sums = second_errors[column].groupby(level=0).sum().to_numpy()
        difference_sums = first_sums - second_sums
        statistic = partial(mean_of_groups, difference_sums, counts)
        sampled = bootstrap(groups, statistic, vectorized=True, method="percentile", rng=0)
        means = []
        for sums in (first_sums, second_sums, difference_sums):
            means.append(mean_of_groups(sums, counts, *groups))
        rows.append((*means, *sampled.confidence_interval))
    return pd.DataFrame(rows, columns, ["first", "second", "difference", "low", "high"])


def scene_groups(scenes: pd.Index, city: dict[str, str] | None, file: Path) -> list[np.ndarray]:
    """Indices of the scenes of each city, or of all scenes in one group.

    Raises TrajformerError: a scene has no city, or a group has fewer than two scenes.
    """
    if city is None:
        groups = [np.arange(len(scenes))]
    else:
        unknown = set(scenes) - set(city)
        if unknown:
            problem = f"scene {min(unknown)} is not in the store of --cities"
            raise TrajformerError(f"{file}: {problem}; use its --split")
        names = np.array([city[scene] for scene in scenes])
        groups = [np.flatnonzero(names == name) for name in np.unique(names)]
    if min(map(len, groups), default=0) < 2:
        problem = "fewer than two scenes, in a city of --cities or in all, have no interval"
        raise TrajformerError(f"{file}: {problem}")
    return groups


def mean_of_groups(
    sums: np.ndarray, counts: np.ndarray, *scenes: np.ndarray, axis: int = -1
) -> np.ndarray:
    """Mean over groups of the mean error of their agents.

    `sums` [N] are the summed errors of each scene, `counts` [N] its numbers of agents. `scenes` has
    for each group the indices of the scenes drawn from it, along `axis`.
    """
    means = []
    for drawn in scenes:
        index = drawn.astype(int)
        means.append(sums[index].sum(axis) / counts[index].sum(axis))
    return np.mean(means, 0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=Path, nargs="+", required=True, metavar="CSV")
    parser.add_argument("--second", type=Path, nargs="+", required=True, metavar="CSV")
    parser.add_argument("--columns", nargs="+", default=COLUMNS)
    parser.add_argument(
        "--cities",
        type=Path,
        metavar="STORE",
        help="store with the scenes: every city counts the same",
    )
    parser.add_argument("--split", default="val", help="of that store")
    parser.add_argument(
        "--moved",
        type=float,
        default=0.0,
        metavar="M",
        help="only agents that move this far in their future",
    )
    args = parser.parse_args()
    try:
        city = city_of_scenes(args.cities, args.split) if args.cities else None
        table = compare(args.first, args.second, args.columns, city, args.moved)
    except (TrajformerError, OSError, KeyError) as error:
        raise SystemExit(f"error: {error}") from error
    print(table.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
