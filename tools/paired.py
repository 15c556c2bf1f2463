"""Compare two models on the same agents: mean difference of errors with a paired 95 % interval.

    trajformer evaluate --checkpoint runs/a_seed0/last.ckpt --store stores/av1 --csv a0.csv
    python tools/paired.py --first a0.csv a1.csv a2.csv --second b0.csv b1.csv b2.csv

Files of a model are runs with other seeds, which are averaged for each agent. The interval is a bootstrap over scenes; the
noise of seeds is in it only as far as the averages keep it. The first model is better if the difference is negative. With
`--cities STORE`, a mean is that of the cities of its scenes, each with the same weight; the interval draws scenes within cities.
With files of `evaluate --agents all`, `--moved 3` compares all moving agents: on Argoverse 1 the interval is half as wide as
that of the focal agents.
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
    empty = {name: [""] for name in pd.read_csv(path, nrows=0).columns.difference(AGENT)}
    return pd.read_csv(
        path, dtype=dict.fromkeys(AGENT, str), keep_default_na=False, na_values=empty
    ).set_index(AGENT)


def mean_errors(files: list[Path]) -> pd.DataFrame:
    """Errors of each agent, averaged over files; a file without the agents of the others is an error."""
    tables = [read_agents(path) for path in files]
    for path, table in zip(files, tables, strict=True):
        if not table.index.sort_values().equals(tables[0].index.sort_values()):
            raise TrajformerError(
                f"{path}: other agents than {files[0]}; use the same split and --agents"
            )
    return (
        pd.concat([table.select_dtypes("number") for table in tables]).groupby(level=AGENT).mean()
    )


def city_of_scenes(store: Path, split: str) -> dict[str, str]:
    """The city of each scene id. Raises TrajformerError: a scene has no city."""
    cities = {scene.scene_id: scene.city for scene in SceneStore(store, split)}
    if not all(cities.values()):
        raise TrajformerError(
            f"{store}: split '{split}' has scenes without a city; leave out --cities"
        )
    return cities


def compare(
    first: list[Path],
    second: list[Path],
    columns: list[str],
    city: dict[str, str] | None = None,
    moved: float = 0.0,
) -> pd.DataFrame:
    """Means, difference and its interval for each column; scenes are drawn with all their agents.

    With the city of each scene id, the means of cities count the same. Only agents count that move at least `moved` metres in
    their future. Raises TrajformerError: the files have other agents, a scene is not in `city`, or a city has fewer than two
    scenes.
    """
    mean_errors([first[0], second[0]])  # checks that both have the same agents
    a, b = mean_errors(first), mean_errors(second)
    if moved:
        chosen = a.future_m >= moved
        a, b = a[chosen], b[chosen]
    size = a.groupby(level=0).size()
    if city and (unknown := set(size.index) - set(city)):
        raise TrajformerError(
            f"{first[0]}: scene {min(unknown)} is not in the store of --cities; use its --split"
        )
    place = np.array([city[scene] if city else "" for scene in size.index])
    groups = [np.flatnonzero(place == name) for name in np.unique(place)]
    if min(map(len, groups), default=0) < 2:
        raise TrajformerError(
            f"{first[0]}: fewer than two scenes, in a city of --cities or in all, have no interval"
        )

    def mean(total: np.ndarray, *drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        """Mean over groups, for the scenes drawn from each of them."""
        chosen = [index.astype(int) for index in drawn]
        return np.mean(
            [total[index].sum(axis) / size.to_numpy()[index].sum(axis) for index in chosen], 0
        )

    rows = []
    for column in columns:
        totals = [table[column].groupby(level=0).sum().to_numpy() for table in (a, b)]
        gap = totals[0] - totals[1]
        found = bootstrap(groups, partial(mean, gap), vectorized=True, method="percentile", rng=0)
        rows.append(
            (*(mean(total, *groups) for total in (*totals, gap)), *found.confidence_interval)
        )
    return pd.DataFrame(rows, columns, ["first", "second", "difference", "low", "high"])


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
