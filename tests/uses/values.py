"""Values of a wrong range or type, YAML that is no recipe, tables in other units, typing errors."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from support import tables
from support.uses import Case

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.readers.table.reader import Table
from trajformer import build_model, collate
from trajformer.data.sample import BatchConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.recipes.names import read_recipe
from trajformer.recipes.recipe import OptimConfig, TrainerConfig

# ---- values of recipes -------------------------------------------------------------------------

BLOCK = "model.mmtransformer"
VALUES = {  # field: value, and the rest of the line
    "optim.learning_rate": ("1e30", "1e.30, expected 1e-12 to 10.0"),
    "optim.clip": (".nan", "nan, expected 0 to"),
    "optim.weight_decay": (".inf", "inf, expected 0 to"),
    "data.batch.polyline_length_m": ("1e-9", "1e-09, expected 0.1 to 10000.0"),
    "data.batch.map_radius_m": ("-1", "-1.0, expected 0 to"),
    "data.batch_size": ("0", "0, expected 1 to 10000"),
    "data.train_split": ("''", "empty"),
    "data.train": (r'"a\0b"', "'a.x00b', expected up to 4096 characters without zero bytes"),
    f"{BLOCK}.modes": ("0", "0, expected 1 to 10000"),
    f"{BLOCK}.motion_layers": ("[10000000, 1]", "10000000, expected 0 to 200"),
    "trainer.epochs": ("10000000", "10000000, expected 1 to 1000000"),
    "trainer.steps": ("0", "0, expected 1 to 1000000000"),
    "seed": ("9223372036854775808", "9223372036854775808, expected 0 to 4294967295"),
}
TYPES = {  # malformed for the parser, with exit status 2
    "trainer.steps": ("cpu", "trainer.steps: .*Given value: cpu"),
    "trainer.epochs": ("1.5", "trainer.epochs: .*Given value: 1.5"),
    "optim.schedule": ("random", "optim.schedule: Expected a .*Got value: random"),
    "optim.betas": ("[0.9]", "optim.betas: Expected a tuple with 2 elements"),
    "data.cache": ("3", "data.cache: Expected a bool"),
}


def written(field: str, value: str) -> Callable[[], object]:
    """The recipe value.yaml with one field."""
    text = value
    for name in reversed(field.split(".")):
        text = f"{{{name}: {text}}}"
    return lambda: Path("value.yaml").write_text(text)


def value_in_recipe(field: str, value: str, line: str) -> Case:
    return Case(
        f"{field} {value}",
        "train --config recipe.yaml --config value.yaml --out r",
        f"^trajformer train: {field}: {line}",
        written(field, value),
    )


def value_as_option(field: str, value: str, line: str) -> Case:
    words = f"train --config recipe.yaml --{field} '{value}' --out r"
    return Case(f"--{field} {value}", words, line, status=2)


CASES = []
for field, (value, line) in VALUES.items():
    CASES.append(value_in_recipe(field, value, line))
for field, (value, line) in TYPES.items():
    CASES.append(value_as_option(field, value, line))

# ---- YAML --------------------------------------------------------------------------------------

BOMB = "a: &a [x, x]\n"
for anchor, next_anchor in pairwise("abcdefghi"):
    aliases = ", ".join([f"*{anchor}"] * 9)
    BOMB += f"{next_anchor}: &{next_anchor} [{aliases}]\n"
YAML = {  # text, and the rest of the line
    "a YAML bomb": (BOMB, "line 2: aliases are not supported"),
    "a recursive alias": ("model: &a [*a]\n", "line 1: aliases are not supported"),
    "50 MB": ("a: " + "x" * 50_000_000, "50001 characters, expected at most 50000"),
    "a key twice": (
        "seed: 1\ndata: {train: a}\nseed: 2\n",
        "line 1: seed occurs twice in this block",
    ),
    "a key twice in a group": ("optim:\n  clip: 1.0\n  clip: 2.0\n", "line 2: clip occurs twice"),
    "a tab": ("optim:\n\tclip: 1.0\n", "line 2: found character '.t' that cannot start any token"),
    "a tag with code": (
        "a: !!python/object/apply:os.mkdir [executed]\n",
        "could not determine a constructor for the tag",
    ),
    "an unknown tag": ("a: !speed 3\n", "could not determine a constructor for the tag '!speed'"),
    "deep lists": ("[" * 40_000, "maximum recursion depth exceeded"),
    "a number of 9000 digits": ("seed: " + "9" * 9_000, "Exceeds the limit"),
    "a number of 30,000 hexadecimal digits": (
        "seed: 0x" + "f" * 30_000,
        "a whole number of more than 64 bits",
    ),
    "two documents": ("seed: 1\n---\nseed: 2\n", "line 2: but found another document"),
    "a date": ("seed: 2001-99-99\n", "month must be in 1..12"),
    "bytes that are not text": ("\udc80", "not a text file"),
}


def text_as_recipe(use: str, text: str, line: str) -> Case:
    content = text.encode(errors="surrogateescape")
    return Case(
        f"a recipe with {use}",
        "train --config file --out r",
        f"^trajformer train: file: (not readable as YAML: )?.*{line}",
        lambda: Path("file").write_bytes(content),
        limit_s=15.0,
    )


for use, (text, line) in YAML.items():
    CASES.append(text_as_recipe(use, text, line))
CASES += [
    Case(
        "a YAML bomb as the list of a comparison",
        "tools/compare/models.py --table list.yaml --store store --out out",
        "list.yaml: not readable as YAML: line 2: aliases are not supported",
        lambda: Path("list.yaml").write_text(BOMB),
    ),
    Case(
        "an alias",
        "train --config recipe.yaml --optim '&a [*a]' --out r",
        "optim: .*line 1: aliases are not",
        status=2,
    ),
]

# ---- tables ------------------------------------------------------------------------------------


def write_drive(table: pd.DataFrame, name: str = "drive") -> None:
    tables.write(Path(f"drives/val/{name}.csv"), table)


def drive(**change: object) -> Callable[[], object]:
    """drives/val/drive.csv with changed columns."""

    def write() -> None:
        table = tables.two_tracks(110)
        for name, values in change.items():
            if callable(values):
                values = values(table)
            table[name] = values
        write_drive(table.dropna(axis="columns", how="all"))

    return write


def two_sensors() -> None:
    """The second agent was seen by a sensor with another phase."""
    table = tables.two_tracks(110)
    table["timestamp"] = 0.1 * table.step + 0.04 * (table.track_id == "b")
    write_drive(table.drop(columns="step"))


def paused() -> None:
    """A recording of 240 steps with a pause of 3.37 s and one row between two steps."""
    table = tables.two_tracks(240)
    table["timestamp"] = 0.1 * table.step + 3.37 * (table.step >= 120)
    table.loc[7, "timestamp"] += 0.04
    write_drive(table.drop(columns="step"))


def mixed_dates(table: pd.DataFrame) -> pd.Series:
    seconds = pd.to_timedelta(100 * table.step, "ms")
    dates = (pd.Timestamp("2024-05-01") + seconds).dt.strftime("%Y-%m-%dT%H:%M:%S.%f")
    return dates + np.where(table.track_id == "a", "Z", "")


def dates_of_zones(table: pd.DataFrame) -> pd.Series:
    hours = pd.to_timedelta(np.where(table.track_id == "a", 0, 2), "h")
    seconds = pd.to_timedelta(100 * table.step, "ms")
    dates = (pd.Timestamp("2024-05-01") + hours + seconds).dt.strftime("%Y-%m-%dT%H:%M:%S.%f")
    return dates + np.where(table.track_id == "a", "Z", "+02:00")


def without_step(unit: float, jitter: float = 0.0, digits: int = 0) -> Callable[[], object]:
    """The same with timestamps instead of steps."""

    def write() -> None:
        table = tables.two_tracks(110)
        seconds = 0.1 * table.step + jitter * np.sin(table.step)
        table["timestamp"] = np.round(seconds * unit, digits)
        write_drive(table.drop(columns="step"))

    return write


def one_id() -> None:
    """Two files with a scene of one id."""
    table = tables.two_tracks(110).assign(scene_id="drive")
    for name in "ab":
        write_drive(table, name)


def reverse(column: str) -> Callable[[pd.DataFrame], np.ndarray]:
    return lambda table: table[column][::-1].to_numpy()


def lanes_of_yaml() -> None:
    drive()()
    Path("drives/lanes.json").write_text("a: 1")


def twice() -> None:
    """A track with its last row twice."""
    table = tables.two_tracks(110)
    write_drive(tables.frame(table, table.iloc[[-1]]))


DRIVING_DIRECTION = np.arctan2(1, 5)  # of the tracks, vx 5 m/s and vy 1 m/s


def far_lanes() -> None:
    drive()()
    tables.write_lanes(Path("drives/lanes.json"), {"points": [[2000, 0], [2100, 0]]}, geojson=False)


def one_reverses(table: pd.DataFrame) -> np.ndarray:
    """Headings of two cars, of which one drives backwards."""
    return np.where(table.track_id == "a", DRIVING_DIRECTION - np.pi, DRIVING_DIRECTION)


READ_TABLE = "preprocess table drives s --workers 1"
TABLES = {  # table, and the rest of the line
    "in millimetres": (
        drive(x=lambda t: 1e3 * t.x),
        "the 99th percentile of the speed is 5000 m/s, expected 150",
    ),
    "in degrees": (
        drive(x=lambda t: t.x / 1e5, y=lambda t: t.y / 1e5),
        "degrees instead of metres",
    ),
    "in feet": (
        drive(x=lambda t: 3.281 * t.x, y=lambda t: 3.281 * t.y, vx=5.0, vy=1.0),
        "vx, vy: speeds are 0.305 times .* for 2 of 2 moving agents",
    ),
    "at 300 m/s": (drive(x=lambda t: 30.0 * t.step), "the 99th percentile of the speed is 300 m/s"),
    "with jumps of 900 m": (
        drive(x=lambda t: 900.0 * (t.step % 2)),
        "the 99th percentile of the speed is 9000 m/s",
    ),
    "with milliseconds": (
        without_step(1e3),
        "most steps are missing: steps with rows are 1000 apart; .*--time-unit",
    ),
    "with every tenth frame": (
        drive(step=lambda t: 10 * t.step),
        "steps with rows are 10 apart; --step-interval",
    ),
    "with a row twice": (
        twice,
        "track_id .--drop-duplicates true uses the first row.: two rows for step 109 of track 'b'",
    ),
    "of a scene in two files": (one_id, "scene_id: scene 'drive' is also in .*a.csv"),
    "with steps of 0.5": (drive(step=lambda t: t.step / 2), "step: 0.5, expected a whole number"),
    "with a word for x": (drive(x="east"), "x: infinite or no number"),
    "with lanes of YAML": (lanes_of_yaml, "lanes.json: "),
    "with velocities of zero": (
        drive(vx=0.0, vy=0.0),
        "vx, vy: zero for 2 of 2 moving agents; remove the columns",
    ),
    "with velocities in mm/s": (
        drive(vx=5e3, vy=1e3),
        "vx, vy: speeds are 1e.03 times the displacements per second",
    ),
    "with compass headings": (
        drive(heading=np.pi / 2 - DRIVING_DIRECTION),
        "heading: [+]67 degrees from the direction of motion for 2 of 2 moving agents",
    ),
    "with vx and vy exchanged": (
        drive(vx=1.0, vy=5.0),
        "vx, vy: more than 40 degrees from .* for 2 of 2 moving agents: are vx and vy exchanged",
    ),
    "in longitudes and latitudes of one car": (
        drive(track_id="a", step=range(220), x=lambda t: 11.5 + 1e-6 * t.step, y=48.1),
        "at .11.5, 48.1.: degrees instead of metres",
    ),
    "with velocities in the frames of the cars": (
        drive(x=lambda t: -t.x, vx=5.1, vy=0.0),
        "vx, vy: .* for 2 of 2 moving agents: in the frame of each agent",
    ),
    "with small headings in degrees": (
        drive(y=lambda t: 5.0 * (t.track_id == "a"), heading=0.5),
        "heading: more than 20 degrees .* for 2 of 2 moving agents: in degrees",
    ),
    "with timestamps of another period": (
        drive(timestamp=lambda t: 0.04 * t.step),
        "timestamp: 0.04 apart .*, expected 0.1 s",
    ),
    "with irregular milliseconds": (
        without_step(1e3, jitter=0.01),
        "most steps are missing: .*--time-unit",
    ),
}
TABLES |= {  # clocks
    "with nanoseconds": (without_step(1e9), "0.1 s apart if they are in ns: --time-unit ns"),
    "of two sensors": (two_sensors, "'a' and 'b' are 0.04 s apart, as from .*--resample"),
    "with jitter": (without_step(1.0, jitter=0.045, digits=6), "jitter: .*--resample"),
    "with dates with and without a time zone": (
        drive(timestamp=mixed_dates, step=None),
        "timestamp: line 2 is with a time zone .* line 112 is without a time zone",
    ),
}
for use, (prepare_table, line) in TABLES.items():
    CASES.append(Case(f"a table {use}", READ_TABLE, f"drives.*{line}", prepare_table))
OPTIONS = {  # table, and options that make it readable
    "milliseconds with their unit": (without_step(1e3), "--time-unit ms"),
    "every tenth frame with its interval": (
        drive(step=lambda t: 10 * t.step),
        "--step-interval 10",
    ),
    "a row twice, of which one is dropped": (twice, "--drop-duplicates true"),
    "a fast table with a higher limit": (drive(x=lambda t: 30.0 * t.step), "--max-speed-m-s 400"),
    "steps with timestamps in milliseconds": (drive(timestamp=lambda t: 5.0 + 100 * t.step), ""),
    "headings and velocities of a reversing car and another one": (
        drive(heading=one_reverses, vx=5.0, vy=1.0),
        "",
    ),
    "unsorted rows": (drive(x=reverse("x"), step=reverse("step")), ""),
}
for use, (prepare_table, option) in OPTIONS.items():
    words = f"{READ_TABLE} {option}"
    CASES.append(Case(use, words, "val: 1 scenes, .* 0 skipped", prepare_table, status=0))

CASES.append(
    Case(
        "a table with lanes 2 km away",
        READ_TABLE,
        "val: 1 scenes.*\n  warning val/drive.csv: lanes.json: no lane within 100 m of any agent",
        far_lanes,
        status=0,
    )
)

WINDOWS = r"4 scenes, .* 0 skipped\n  warning .*: 1 of 480 rows are not used: 1 between two steps"
CASES += [
    Case("a table with a pause of the clock", READ_TABLE, f"val: {WINDOWS}", paused, status=0),
    Case(
        "a table of two sensors that is resampled",
        f"{READ_TABLE} --resample",
        "val: 1 scenes, .* 0 skipped",
        two_sensors,
        status=0,
    ),
    Case(
        "a table with dates of two time zones",
        READ_TABLE,
        "val: 1 scenes, .* 0 skipped",
        drive(timestamp=dates_of_zones, step=None),
        status=0,
    ),
]

# ---- command lines and Python --------------------------------------------------------------------

LINES = {  # words: exit status, line
    "trian --config recipe.yaml": (2, "no command 'trian'"),
    "train": (2, "the following arguments are required: out"),
    "train --config recipe.yaml --out ''": (2, "an empty path"),
    "train fly --config recipe.yaml --out r": (2, "unrecognized arguments: fly"),
    "train --config recipe.yaml --out r --optim.speed 3": (2, "optim.speed"),
    "train --config recipe.yaml --out r --loss.regions '{}'": (
        1,
        "RegionLossConfig is not for MMTransformer, expected set",
    ),
    "train --config heads/vit_digits --out r --labels '[a, a]'": (1, "model.classes"),
    "train --config compare/models --out r": (1, "no such file and no recipe of this name"),
    "evaluate --model constant_velocity --store ''": (2, "an empty path"),
    "evaluate --model constant_velocity --store store --threads 10000": (
        1,
        "--threads 10000: expected at most",
    ),
    "evaluate --model linear --store store": (2, "invalid choice: 'linear'"),
    "evaluate --model constant_velocity --store store --horizons 1,soon": (
        1,
        "--horizons 1,soon: expected seconds with commas, such as 1,3,5",
    ),
    "evaluate --model constant_velocity --store store --horizons 60": (
        1,
        "--horizons 60: expected 0.1 s to .*, the horizon of the scenes",
    ),
    "evaluate --model constant_velocity --store store --details weather": (
        1,
        "--details weather: expected some of map, dynamics, overlap, calibration, crowd, all",
    ),
    "evaluate --model constant_velocity --store store --by color": (
        1,
        "--by color: expected some of type, manoeuvre, speed, city, role",
    ),
    "evaluate --model constant_velocity --store store --against nothing.parquet": (
        1,
        "nothing.parquet: no such file",
    ),
    "evaluate --checkpoint run/best.ckpt run/best.ckpt --store store": (1, "give different ones"),
    "score nothing.parquet --store store": (1, "nothing.parquet: no such file"),
    "score --store store": (2, "forecasts"),
    "score store/manifest.json --store store": (1, "not a readable parquet file"),
    "report nothing.parquet --store store --out r.html": (1, "nothing.parquet: no such file"),
    "report store/manifest.json --store store": (2, "out"),
    "report notes.txt --store store --out r.json": (1, "r.json: the output is a html file"),
    "report a b c d e --store store --out r.html": (1, "5 files: at most 4 can be compared"),
    "evaluate --checkpoint pretrained:best --store store": (
        1,
        "pretrained:best: no weights of this name",
    ),
    "benchmark eth_ucy --data raw": (1, "raw: no test recording of eth"),
    "benchmark interaction --data interaction --split train": (
        2,
        "unrecognized arguments: --split",
    ),
    "benchmark sdd --data sdd --joint": (2, "unrecognized arguments: --joint"),
    "benchmark fly --data sdd": (2, "invalid choice: 'fly'"),
    "weights convert trajformer run/best.ckpt c.ckpt --heads 4": (
        1,
        "--heads and --labels are not allowed for trajformer",
    ),
    "predict --model constant_velocity --store store": (2, "required: --out"),
    "predict --model constant_velocity --store store --out f.csv": (
        1,
        "f.csv: the output is a parquet file",
    ),
    "plot store --out p --random 0": (2, "random"),
    "plot store --out p --zoom 0": (2, "zoom"),
    "plot store --out p --color red": (2, "color"),
    "plot store --out p --color world": (1, "--color world needs --forecasts"),
    "plot store --out p --agents 1": (1, "--agents needs --scene"),
    "plot store --out p --format gif": (1, "--format gif is possible with --animate only"),
    "plot store --out p --animate --format svg": (1, "--format svg is possible without --animate"),
    "plot store --out p.png --format svg": (1, "p.png: --format svg needs a name ending in it"),
    "export-mcap store --out p.png": (1, "p.png: the output is a mcap file"),
    "export-mcap nowhere --out p": (1, "nowhere: no such"),
    "plot store --out p.jpg": (1, "p.jpg: the output is a folder; give a name without .jpg"),
    "store": (2, "the following arguments are required"),
    "store info": (2, "the following arguments are required"),
    "store fly store": (2, "invalid choice: 'fly'"),
    "store merge store --out m --split": (2, "split"),
    "preprocess argoverse2 raw raw/s": (1, "the store must lie outside of the raw folder"),
    "preprocess argoverse2 raw s --timeout-s nan": (1, "timeout_s: nan"),
    "preprocess argoverse2 raw s --max-speed-m-s -1": (1, "max_speed_m_s: -1.0, expected 0"),
    "preprocess table table s --period-s nan": (1, "period_s: nan"),
    "preprocess table table s --time-unit h": (2, "--time-unit: invalid choice: 'h'"),
    "preprocess table table s --resample yes": (2, "--resample: 'yes', expected true or false"),
    "preprocess table table s --stride .inf": (2, "--stride: invalid int value: '.inf'"),
    "preprocess table table s --stride=--": (2, "--stride: '--' is not a value"),
    "preprocess table table s --num-history 1": (1, "num_history: 1, expected 2 to"),
    "preprocess table table s --map-radius-m nan": (1, "map_radius_m: nan"),
    "synthesize s --scenes 0": (2, "--scenes: '0', expected int > 0"),
    "recipes ../configs/demo": (1, "no recipe of this name"),
    "weights convert timm_vit notes.txt out.ckpt": (1, "notes.txt"),
    "classify --checkpoint run/best.ckpt notes.txt": (
        1,
        "run/best.ckpt: holds a model for forecasting, expected",
    ),
}
for words, (status, line) in LINES.items():
    CASES.append(Case(f"trajformer {words}", words, line, status=status))
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "TrainerConfig(steps='cpu')": (
        lambda: TrainerConfig(steps="cpu"),
        "steps: expected int | None, found 'cpu'",
    ),
    "OptimConfig(betas=0.9)": (lambda: OptimConfig(betas=0.9), "betas: expected tuple"),
    "BatchConfig(polyline_length_m=0)": (
        lambda: BatchConfig(polyline_length_m=0),
        "polyline_length_m: 0, expected 0.1",
    ),
    "CrowdConfig(modes=True)": (lambda: CrowdConfig(modes=True), "modes: expected int, found True"),
    "collate no scenes": (lambda: collate([]), "a batch needs at least one scene"),
    "build_model of a word": (lambda: build_model("fly"), "fly: no such file and no recipe"),
    "build_model of a number": (lambda: build_model(3), "model: expected Any, found 3"),
    "read_recipe with an unknown field": (
        lambda: read_recipe("demo", {"optim.speed": 1}),
        "optim: unknown field 'speed'",
    ),
    "Table(time_unit='h')": (
        lambda: Table(time_unit="h"),
        "time_unit: expected s or ms or us or ns, found 'h'",
    ),
    "prepare with no workers": (
        lambda: prepare(Table(), Path("table"), Path("s"), PrepareOptions(workers=0)),
        "workers: 0",
    ),
}
for use, (call, line) in CALLS.items():
    CASES.append(Case(f"Python: {use}", call, re.escape(line)))
