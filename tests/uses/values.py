"""Values with a wrong range or type, YAML that is no recipe, tables in other units, mistyped command lines."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from support import tables
from support.uses import Case, Guard

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.readers.table.reader import Table
from trajformer import build_model, collate
from trajformer.data.sample import BatchConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.recipes.names import read_recipe
from trajformer.recipes.recipe import OptimConfig, TrainerConfig

# ---- values of recipes ---------------------------------------------------------------------------------------------

ERRORS, MODELS, DATA, PARSING = (
    f"trajformer/{name}.py" for name in ("errors", "cli/models", "cli/data", "cli/parsing")
)
RANGE = Guard(ERRORS, "if not low <= number <= high:")
EMPTY = Guard(
    ERRORS,
    'if (value == "" or (value == () and item.name in self.positive)) and item.default != value:',
)
TEXT = Guard(ERRORS, 'if "\\0" in part or len(part) > MAX_TEXT:')
TYPE = Guard(ERRORS, "if not _fits(value, hints[item.name]):")
BLOCK = "model.mmtransformer"
VALUES = {  # field: value, and the rest of the line
    "optim.learning_rate": ("1e30", "1e.30, expected 1e-12 to 10.0"),
    "optim.clip": (".nan", "nan, expected 0 to"),
    "optim.weight_decay": (".inf", "inf, expected 0 to"),
    "data.batch.polyline_length_m": ("1e-9", "1e-09, expected 0.1 to 10000.0"),
    "data.batch.agent_radius_m": ("-1", "-1.0, expected 0 to"),
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
    inner = f"{{{field.split('.')[-1]}: {value}}}"
    for name in reversed(field.split(".")[:-1]):
        inner = f"{{{name}: {inner}}}"
    return lambda: Path("value.yaml").write_text(inner)


CASES = [
    Case(
        f"{field} {value}",
        "train --config recipe.yaml --config value.yaml --out r",
        f"^trajformer train: {field}: {line}",
        written(field, value),
        EMPTY if line == "empty" else TEXT if "characters" in line else RANGE,
    )
    for field, (value, line) in VALUES.items()
]
CASES += [
    Case(
        f"--{field} {value}",
        f"train --config recipe.yaml --{field} '{value}' --out r",
        line,
        status=2,
    )
    for field, (value, line) in TYPES.items()
]

# ---- YAML ----------------------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghi")
)
YAML = {  # text: the rest of the line
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
_TEXT, _NEVER = "trajformer/recipes/yaml_text.py", "except ZeroDivisionError as error:"
ALIAS, TWICE = (
    Guard(_TEXT, "if self.check_event(yaml.AliasEvent):"),
    Guard(_TEXT, "if len(values) < len(node.value):"),
)
YAML_ERROR = Guard(
    _TEXT, "except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:", _NEVER
)
YAML_GUARDS = {  # of other texts: YAML_ERROR
    "a YAML bomb": ALIAS,
    "a recursive alias": ALIAS,
    "50 MB": Guard(_TEXT, "if len(text) > MAX_BYTES:"),
    "a key twice": TWICE,
    "a key twice in a group": TWICE,
    "a tag with code": Guard(
        _TEXT, "class _Loader(yaml.SafeLoader):", "class _Loader(yaml.UnsafeLoader):"
    ),
    "a number of 30,000 hexadecimal digits": Guard(_TEXT, "if abs(value) >= 2**64:"),
    "bytes that are not text": Guard(
        _TEXT, "except (OSError, UnicodeDecodeError) as error:", _NEVER
    ),
}
CASES += [
    Case(
        f"a recipe with {use}",
        "train --config file --out r",
        f"^trajformer train: file: (not readable as YAML: )?.*{line}",
        lambda text=text: Path("file").write_bytes(text.encode(errors="surrogateescape")),
        YAML_GUARDS.get(use, YAML_ERROR),
        limit_s=15.0,
    )
    for use, (text, line) in YAML.items()
]
CASES += [
    Case(
        "a YAML bomb as the list of a comparison",
        "tools/compare/models.py --table list.yaml --store store --out out",
        "list.yaml: not readable as YAML: line 2: aliases are not supported",
        lambda: Path("list.yaml").write_text(BOMB),
        ALIAS,
    ),
    Case(
        "an alias",
        "train --config recipe.yaml --optim '&a [*a]' --out r",
        "optim: .*line 1: aliases are not",
        guard=Guard(PARSING, 'parse_yaml(text, "value")', "pass"),
        status=2,
    ),
]

# ---- tables --------------------------------------------------------------------------------------------------------


def drive(**change: object) -> Callable[[], object]:
    """drives/val/drive.csv with changed columns."""

    def write() -> None:
        table = tables.two_tracks(110)
        for name, values in change.items():
            table[name] = values(table) if callable(values) else values
        tables.write(Path("drives/val/drive.csv"), table)

    return write


def without_step(unit: float, jitter: float = 0.0) -> Callable[[], object]:
    """The same with timestamps instead of steps."""

    def write() -> None:
        table = tables.two_tracks(110)
        timestamp = np.round((0.1 * table.step + jitter * np.sin(table.step)) * unit)
        tables.write(
            Path("drives/val/drive.csv"), table.assign(timestamp=timestamp).drop(columns="step")
        )

    return write


def one_id() -> None:
    """Two files with a scene of one id."""
    for name in "ab":
        tables.write(
            Path(f"drives/val/{name}.csv"), tables.two_tracks(110).assign(scene_id="drive")
        )


def twice() -> None:
    """A track with its last row twice."""
    table = tables.two_tracks(110)
    tables.write(Path("drives/val/drive.csv"), tables.frame(table, table.iloc[[-1]]))


TABLE, PLAUSIBLE = "data_prep/readers/table/reader.py", "data_prep/engine/plausible.py"
SPEED, DIRECTION = (
    Guard(PLAUSIBLE, "if largest > limit:"),
    Guard(TABLE, ") > MAX_ACROSS:", ") > 1e9:"),
)
STEPS, RATIO = (
    Guard(TABLE, "if interval > 1:"),
    Guard(TABLE, "if moving.sum() >= MIN_MOVING and not", "if False and not"),
)
TABLE_GUARDS = {
    "in degrees": Guard(PLAUSIBLE, "if len(valid) > 1 and 0 < extent < MIN_EXTENT_M:"),
    "with a row twice": Guard("data_prep/readers/columns.py", "if count.max() > 1:"),
    "of a scene in two files": Guard(
        TABLE, "if twice := next((name for name in scenes if name in owner), None):"
    ),
    "with steps of 0.5": Guard(
        TABLE, "elif (wrong := bad[begin:stop]).any():", "elif (wrong := bad[begin:stop]) is None:"
    ),
    "with a word for x": Guard(TABLE, "if (beyond := np.abs(values) > limit).any():"),
    "with lanes of YAML": Guard(
        "data_prep/readers/table/lanes.py",
        "except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:",
        _NEVER,
    ),
    "with timestamps of another period": Guard(TABLE, "if apart > 0 and not any(", "if not ("),
}
TABLE_GUARDS |= dict.fromkeys(("in millimetres", "at 300 m/s", "with jumps of 900 m"), SPEED)
TABLE_GUARDS |= dict.fromkeys(
    ("in feet", "with velocities of zero", "with velocities in mm/s"), RATIO
)
TABLE_GUARDS |= dict.fromkeys(
    ("with milliseconds", "with every tenth frame", "with irregular milliseconds"), STEPS
)
TABLE_GUARDS |= dict.fromkeys(("with compass headings", "with vx and vy exchanged"), DIRECTION)
READ_TABLE = "preprocess table drives s --workers 1"
TABLES = {
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
        "vx: speeds are 0.305 times",
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
    "with lanes of YAML": (
        lambda: (drive()(), Path("drives/lanes.json").write_text("a: 1")),
        "lanes.json: ",
    ),
    "with velocities of zero": (
        drive(vx=0.0, vy=0.0),
        "vx: speeds are 0 times the displacements per second",
    ),
    "with velocities in mm/s": (
        drive(vx=5e3, vy=1e3),
        "vx: speeds are 1e.03 times the displacements per second",
    ),
    "with compass headings": (
        drive(heading=np.pi / 2 - np.arctan2(1, 5)),
        "heading: differs from the direction of motion by 67 deg",
    ),
    "with vx and vy exchanged": (
        drive(vx=1.0, vy=5.0),
        "vx: differs from the direction of .* by 67 .*exchanged",
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
CASES += [
    Case(f"a table {use}", READ_TABLE, f"drives.*{line}", prepare_table, TABLE_GUARDS.get(use))
    for use, (prepare_table, line) in TABLES.items()
]
OPTIONS = {
    "milliseconds with their unit": (without_step(1e3), "--time-unit ms"),
    "every tenth frame with its interval": (
        drive(step=lambda t: 10 * t.step),
        "--step-interval 10",
    ),
    "a row twice, of which one is dropped": (twice, "--drop-duplicates true"),
    "a fast table with a higher limit": (drive(x=lambda t: 30.0 * t.step), "--max-speed-m-s 400"),
    "steps with timestamps in milliseconds": (drive(timestamp=lambda t: 5.0 + 100 * t.step), ""),
    "headings and velocities of a reversing car": (
        drive(heading=np.arctan2(1, 5) - np.pi, vx=5.0, vy=1.0),
        "",
    ),
    "unsorted rows": (
        drive(x=lambda t: t.x[::-1].to_numpy(), step=lambda t: t.step[::-1].to_numpy()),
        "",
    ),
}
CASES += [
    Case(use, f"{READ_TABLE} {option}", "val: 1 scenes, .* 0 skipped", prepare_table, status=0)
    for use, (prepare_table, option) in OPTIONS.items()
]

# ---- command lines and Python --------------------------------------------------------------------------------------

OUTPUT, NAMES, NOT_ALLOWED = (
    "trajformer/cli/files.py",
    "trajformer/recipes/names.py",
    Guard(MODELS, "if args.protocol and used:"),
)
COMMAND = Guard("trajformer/cli/__init__.py", "if words[0] not in COMMANDS:")
EMPTY_PATH = Guard(PARSING, 'if "" in words and Path() in', "if False and Path() in")
RECIPE, WEIGHTS = (
    Guard(NAMES, "if str(name) in recipe_names():", "if True:"),
    Guard(NAMES, "if weights not in known:"),
)
SUFFIX = Guard(
    OUTPUT,
    "if existing != target and path.suffix.lower() in",
    "if False and path.suffix.lower() in",
)


def chosen(file: str, option: str, check: str, instead: str = "") -> Guard:
    """The guard of an option that the parser checks."""
    return Guard(file, f'"{option}", {check}', f'"{option}", {instead}')


LINES: dict[
    str, tuple[Any, ...]
] = {  # words: exit status, line, and the guard if the check is not of a library
    "trian --config recipe.yaml": (2, "no command 'trian'", COMMAND),
    "train": (
        2,
        "the following arguments are required: out",
        chosen(MODELS, "--out", 'type=Path, required=True, help="folder of the run"', "type=Path"),
    ),
    "train --config recipe.yaml --out ''": (2, "an empty path", EMPTY_PATH),
    "train fly --config recipe.yaml --out r": (2, "unrecognized arguments: fly"),
    "train --config recipe.yaml --out r --optim.speed 3": (2, "optim.speed"),
    "train --config recipe.yaml --out r --loss.regions '{}'": (
        1,
        "RegionLossConfig is not for MMTransformer, expected set",
        Guard(
            "trajformer/recipes/recipe.py",
            "if self.loss is not None and type(self.loss) not in model.losses:",
        ),
    ),
    "train --config heads/vit_digits --out r --labels '[a, a]'": (
        1,
        "model.classes",
        Guard("trajformer/heads/vit.py", "if len(labels) != self.model.classes:"),
    ),
    "train --config compare/models --out r": (1, "no such file and no recipe of this name", RECIPE),
    "evaluate --model constant_velocity --store ''": (2, "an empty path", EMPTY_PATH),
    "evaluate --model linear --store store": (
        2,
        "invalid choice: 'linear'",
        chosen(MODELS, "--model", "choices=UNTRAINED, "),
    ),
    "evaluate --checkpoint pretrained:best --store store": (
        1,
        "pretrained:best: no weights of this name",
        WEIGHTS,
    ),
    "benchmark eth_ucy --data raw": (
        1,
        "raw: no test recording of eth",
        Guard(
            "trajformer/cli/protocols.py",
            'if missing := [name for name in COUNTS if f"{name}_test" not in splits]:',
        ),
    ),
    "benchmark interaction --data interaction --split train": (
        2,
        "unrecognized arguments: --split",
    ),
    "benchmark sdd --data sdd --joint": (2, "unrecognized arguments: --joint"),
    "benchmark fly --data sdd": (2, "invalid choice: 'fly'"),
    "weights convert trajformer run/best.ckpt c.ckpt --heads 4": (
        1,
        "--heads and --labels are not allowed for trajformer",
        Guard(MODELS, "if args.layout == OWN and (args.heads", "if False and (args.heads"),
    ),
    "predict --model constant_velocity --store store": (
        2,
        "required: out",
        chosen(MODELS, "--out", 'type=Path, required=True, help="parquet file"', "type=Path"),
    ),
    "predict --model constant_velocity --store store --out f.csv": (
        1,
        "f.csv: the output is a parquet file",
        SUFFIX,
    ),
    "plot store --out p --random 0": (
        2,
        "random",
        chosen(MODELS, "--random", "type=PositiveInt", "type=int"),
    ),
    "plot store --out p.jpg": (
        1,
        "p.jpg: the output is a folder; give a name without .jpg",
        SUFFIX,
    ),
    "store": (2, "the following arguments are required"),
    "store info": (2, "the following arguments are required"),
    "store fly store": (
        2,
        "invalid choice: 'fly'",
        chosen("trajformer/cli/store.py", "action", "choices=chosen, "),
    ),
    "store merge store --out m --split": (2, "split"),
    "preprocess argoverse2 raw raw/s": (
        1,
        "the store must lie outside of the raw folder",
        Guard("data_prep/engine/prepare.py", "if store.resolve().is_relative_to(raw.resolve()):"),
    ),
    "preprocess argoverse2 raw s --timeout-s .nan": (1, "timeout_s: nan", RANGE),
    "preprocess argoverse2 raw s --max-speed-m-s -1": (1, "max_speed_m_s: -1.0, expected 0", RANGE),
    "preprocess table table s --period-s .nan": (1, "period_s: nan", RANGE),
    "preprocess table table s --time-unit h": (2, "time_unit"),
    "preprocess table table s --num-history 1": (1, "num_history: 1, expected 2 to", RANGE),
    "preprocess table table s --map-radius-m .nan": (1, "map_radius_m: nan", RANGE),
    "synthesize s --scenes 0": (
        2,
        "scenes: Not of type",
        chosen(DATA, "--scenes", "type=PositiveInt", "type=int"),
    ),
    "recipes ../configs/demo": (1, "no recipe of this name", RECIPE),
    "weights convert timm_vit notes.txt out.ckpt": (
        1,
        "notes.txt",
        Guard("trajformer/core/weights.py", "    except _UNREADABLE as error:", f"    {_NEVER}"),
    ),
    "classify --checkpoint run/best.ckpt notes.txt": (
        1,
        "run/best.ckpt: holds a model for forecasting, expected",
        Guard("trajformer/recipes/checkpoint.py", "if task != expected.task:"),
    ),
}
CASES += [
    Case(f"trajformer {words}", words, line, guard=guard[0] if guard else None, status=status)
    for words, (status, line, *guard) in LINES.items()
]
UNKNOWN = Guard("trajformer/recipes/plain.py", "if unknown := set(value) - known.keys():")
CALLS: dict[str, tuple[Callable[[], object], str, Guard]] = {
    "TrainerConfig(steps='cpu')": (
        lambda: TrainerConfig(steps="cpu"),
        "steps: expected int | None, found 'cpu'",
        TYPE,
    ),  # type: ignore[arg-type]
    "OptimConfig(betas=0.9)": (lambda: OptimConfig(betas=0.9), "betas: expected tuple", TYPE),  # type: ignore[arg-type]
    "BatchConfig(polyline_length_m=0)": (
        lambda: BatchConfig(polyline_length_m=0),
        "polyline_length_m: 0, expected 0.1",
        RANGE,
    ),
    "CrowdConfig(modes=True)": (
        lambda: CrowdConfig(modes=True),
        "modes: expected int, found True",
        TYPE,
    ),
    "collate no scenes": (
        lambda: collate([]),
        "a batch needs at least one scene",
        Guard("trajformer/data/batch.py", "if not samples:"),
    ),
    "build_model of a word": (
        lambda: build_model("fly"),
        "fly: no such file and no recipe",
        RECIPE,
    ),
    "build_model of a number": (lambda: build_model(3), "model: expected Any, found 3", TYPE),
    "read_recipe with an unknown field": (
        lambda: read_recipe("demo", {"optim.speed": 1}),
        "optim: unknown field 'speed'",
        UNKNOWN,
    ),
    "Table(time_unit='h')": (
        lambda: Table(time_unit="h"),
        "time_unit: expected s or ms or us or ns, found 'h'",
        TYPE,
    ),  # type: ignore[arg-type]
    "prepare with no workers": (
        lambda: prepare(Table(), Path("table"), Path("s"), PrepareOptions(workers=0)),
        "workers: 0",
        RANGE,
    ),
}
CASES += [
    Case(f"Python: {use}", call, line.replace("|", r"\|"), guard=guard)
    for use, (call, line, guard) in CALLS.items()
]
