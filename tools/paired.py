"""Compare two models on the same agents: mean difference of errors with a paired 95 % interval.

    trajformer evaluate --checkpoint runs/a_seed0/last.ckpt --store stores/av1 --csv a0.csv
    python tools/paired.py --first a0.csv a1.csv a2.csv --second b0.csv b1.csv b2.csv

Files of a model are runs with other seeds, which are averaged for each agent. The interval is a bootstrap over scenes; the
noise of seeds is in it only as far as the averages keep it. The first model is better if the difference is negative.
"""

import argparse
from pathlib import Path

import pandas as pd
from scipy.stats import bootstrap

from trajformer.errors import TrajformerError

AGENT = ["scenario_id", "track_id"]
COLUMNS = ["minADE6", "minFDE6", "MR6", "minFDE1"]


def mean_errors(files: list[Path]) -> pd.DataFrame:
    """Errors of each agent, averaged over files; a file without the agents of the others is an error."""
    tables = [pd.read_csv(path, dtype=dict.fromkeys(AGENT, str)).set_index(AGENT) for path in files]
    for path, table in zip(files, tables, strict=True):
        if not table.index.sort_values().equals(tables[0].index.sort_values()):
            raise TrajformerError(f"{path}: other agents than {files[0]}; use the same split and --agents")
    return pd.concat([table.select_dtypes("number") for table in tables]).groupby(level=AGENT).mean()


def compare(first: list[Path], second: list[Path], columns: list[str]) -> pd.DataFrame:
    """Means, difference and its interval for each column; scenes are drawn with all their agents."""
    mean_errors([first[0], second[0]])  # checks that both have the same agents
    a, b = mean_errors(first), mean_errors(second)
    rows = []
    for column in columns:
        gap = (a[column] - b[column]).groupby(level=0).agg(["sum", "size"])
        draws = (gap["sum"].to_numpy(), gap["size"].to_numpy())
        found = bootstrap(
            draws, lambda total, size, axis: total.sum(axis) / size.sum(axis), paired=True, method="percentile", rng=0
        )
        rows.append((a[column].mean(), b[column].mean(), gap["sum"].sum() / gap["size"].sum(), *found.confidence_interval))
    return pd.DataFrame(rows, columns, ["first", "second", "difference", "low", "high"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=Path, nargs="+", required=True, metavar="CSV")
    parser.add_argument("--second", type=Path, nargs="+", required=True, metavar="CSV")
    parser.add_argument("--columns", nargs="+", default=COLUMNS)
    args = parser.parse_args()
    try:
        table = compare(args.first, args.second, args.columns)
    except (TrajformerError, OSError, KeyError) as error:
        raise SystemExit(f"error: {error}") from error
    print(table.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
