"""Outputs on existing files, on inputs, on devices, pipes and links, and on places that cannot be written."""

import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.uses import Case, Guard

from trajformer.scenes.files import lock_folder

FILES, RULE, PREPARE = (
    "trajformer/scenes/files.py",
    "trajformer/cli/files.py",
    "data_prep/engine/prepare.py",
)
EXISTING = Guard(RULE, "    if not overwrite:\n        raise", "    if False:\n        raise")
KIND = Guard(RULE, "if head and not re.match(KINDS[kind], head, re.DOTALL):")
INPUT = Guard(RULE, "if target == source or (is_read and source in target.parents):")
FULL_FOLDER = Guard(RULE, "any(target.iterdir()) and not overwrite", "False")
SPECIAL = Guard(FILES, "if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):")
LINK = Guard(FILES, "Path(os.path.realpath(path))", "path")
LOCKED = Guard(
    FILES, "lock.acquire(timeout=LOCK_S)", "path.exists() or lock.acquire(timeout=LOCK_S)"
)
SOURCE = Guard(PREPARE, "            if not options.overwrite:\n", "            if False:\n")
RIGHTS = (
    Guard(RULE, "if not os.access(existing, os.W_OK):"),
    Guard(FILES, "if target.is_file() and not os.access(target, os.W_OK):"),
)
EMPTY_LOCK = Guard(FILES, "            path.unlink(missing_ok=True)", "            raise")
OTHER_MERGE = Guard(
    "trajformer/scenes/merge.py",
    "if earlier != {copy.target: copy.sha256 for copy in copies} or",
    "if",
)
HAS_STORE = Guard("trajformer/scenes/store.py", "if not self.root.is_dir():")
NEVER = "except ZeroDivisionError as error:"
SYSTEM = Guard(
    "trajformer/cli/__init__.py", "except OSError as error:  # no space", f"{NEVER}  # no space"
)
STORE_ERROR = '    {}\n        raise TrajformerError(f"{{error.filename or store}}'
IN_STORE = Guard(PREPARE, STORE_ERROR.format("except OSError as error:"), STORE_ERROR.format(NEVER))
IN_RUN = Guard("trajformer/training/run.py", "        except OSError as error:", f"        {NEVER}")
FAILS = Guard(RULE, "        except OSError as error:", f"        {NEVER}")
IN_FOLDER, A_FOLDER = Guard(RULE, "if not parent.is_dir():"), Guard(RULE, "if path.is_dir():")
FINISHED = Guard("trajformer/training/run.py", "if last.exists() and not resume:")
ALONE = Guard("trajformer/training/run.py", "if (out / BEST).exists() and not last.exists():")
NOTHING = Guard("trajformer/training/run.py", "if resume and last is None and first_process:")

CONSTANT = "--model constant_velocity --store store"
TRAINED = "--checkpoint run/best.ckpt --store store"
SCORE, PREDICT, PLOT = f"evaluate {CONSTANT}", f"predict {CONSTANT}", "plot store"
EXPORT, PREPARE_RAW = "store export-scene store --scene raw-val-0", "preprocess argoverse2 raw"
TRAIN = "train --config recipe.yaml --out"
EXISTS, AN_INPUT = (
    "exists; give another name, or --overwrite to replace it",
    "is an input of this command",
)


# ---- preparation ---------------------------------------------------------------------------------------------------


def also(*steps: Callable[[], object]) -> Callable[[], object]:
    return lambda: [step() for step in steps]


def table() -> None:
    Path("table.yaml").write_text("- {name: constant velocity, model: constant_velocity}\n")


def piped_output() -> None:
    """A link to a pipe that is open for writing, as /dev/stdout is in `command | other`."""
    _, write = os.pipe()
    Path("standard_output").symlink_to(f"/proc/self/fd/{write}")


def linked(name: str, target: str) -> Callable[[], object]:
    return lambda: Path(name).symlink_to(target)


def copied(source: str, target: str) -> Callable[[], object]:
    return lambda: shutil.copy(source, target)


def as_nobody(*folders: str) -> Callable[[], object]:
    """Continue as a user without rights. Only the folder of the case is writable, except these folders."""

    def change() -> None:
        for path in (Path.cwd(), *Path.cwd().rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        for folder in folders:
            Path(folder).chmod(0o555 if Path(folder).is_dir() else 0o444)
        for parent in Path.cwd().parents[:-2]:
            parent.chmod(0o755)
        if os.getuid() == 0:
            os.setuid(65534)

    return change


def locked(folder: str) -> Callable[[], object]:
    """A folder that another process has locked, which lives as long as the process of the case."""

    def lock() -> None:
        (ready, locked), (end, alive) = os.pipe(), os.pipe()
        if os.fork():
            os.close(end)
            os.read(ready, 1)
            return
        os.setsid()
        os.close(alive)
        with lock_folder(Path(folder)):
            os.write(locked, b" ")
            os.read(
                end, 1
            )  # returns at the end of the process of the case, which has the other side
        os._exit(0)

    return lock


def abandoned(folder: str) -> Callable[[], object]:
    """A folder with the lock of a process that was killed."""

    def lock() -> None:
        if child := os.fork():
            os.waitpid(child, 0)
            return
        with lock_folder(Path(folder)):
            os.kill(os.getpid(), signal.SIGKILL)

    return lock


def empty_lock() -> None:
    """A folder with the lock of a process that was killed before it wrote its name."""
    Path("fresh").mkdir()
    Path("fresh/.lock").touch()


# ---- cases -----------------------------------------------------------------------------------------------------------


def on(
    command: str,
    output: str,
    line: str,
    guard: Guard | tuple[Guard, ...],
    prepare: Callable[[], object] = list,
) -> Case:
    """A command on an output that must be kept."""
    use = f"{command} {output}" + (", prepared" if prepare is not list else "")
    return Case(use.replace("/", ":"), f"{command} {output}", line, prepare, guard)


def works(
    use: str,
    run: Any,
    line: str = "",
    prepare: Callable[[], object] = list,
    guard: Guard | None = None,
    **more: Any,
) -> Case:
    return Case(use, run, line, prepare, guard, status=0, **more)


FIGURES = (("figures.json", "minFDE6"),)
MINE = also(
    lambda: os.mkdir("mine"),
    copied("recipe.yaml", "mine/config.yaml"),
    copied("run/best.ckpt", "mine"),
)
EXISTING_FILES = [
    on(SCORE, "--json figures.json", f"figures.json: {EXISTS}", EXISTING),
    on(SCORE, "--csv notes.txt", f"notes.txt: {EXISTS}", EXISTING),
    on(PREDICT, "--out forecasts.parquet", f"forecasts.parquet: {EXISTS}", EXISTING),
    on(
        PLOT,
        "--out p.png",
        f"p.png: {EXISTS}",
        EXISTING,
        lambda: Path("p.png").write_bytes(b"\x89PNG"),
    ),
    on(EXPORT, "--out s.json", EXISTS, EXISTING, copied("figures.json", "s.json")),
    on(
        "weights convert trajformer run/last.ckpt",
        "c.ckpt",
        EXISTS,
        EXISTING,
        copied("run/best.ckpt", "c.ckpt"),
    ),
    on(PLOT, "--out other_raw", "other_raw: has files; give another folder", FULL_FOLDER),
    on(
        SCORE,
        "--overwrite --json notes.txt",
        "notes.txt: exists and is not a json file; --overwrite replaces",
        KIND,
    ),
    on(SCORE, "--overwrite --json run/best.ckpt", "best.ckpt: exists and is not a json file", KIND),
    on(SCORE, "--overwrite --csv figures.json", "figures.json: exists and is not a csv file", KIND),
    on(
        PREDICT,
        "--overwrite --out run/best.ckpt",
        "best.ckpt: exists and is not a parquet file",
        KIND,
    ),
    on(
        PLOT,
        "--overwrite --out best.png",
        "is not a png file",
        KIND,
        copied("run/best.ckpt", "best.png"),
    ),
    on(
        "weights convert trajformer run/last.ckpt",
        "--overwrite figures.json",
        "figures.json: exists and is not a ckpt",
        KIND,
    ),
    works(
        "replace figures on request",
        f"{SCORE} --overwrite --json figures.json",
        changes=("figures.json",),
        makes=FIGURES,
    ),
    works(
        "replace forecasts on request",
        f"{PREDICT} --overwrite --out forecasts.parquet",
        changes=("forecasts.parquet",),
    ),
]
INPUTS = [
    on(
        f"predict {TRAINED}",
        "--overwrite --out run/best.ckpt",
        f"run/best.ckpt {AN_INPUT} .checkpoint.",
        INPUT,
    ),
    on(PREDICT, "--overwrite --out store/val/00000.arrow", f"store {AN_INPUT} .store.", INPUT),
    on(SCORE, "--overwrite --json store/manifest.json", f"store {AN_INPUT}", INPUT),
    on(SCORE, "--json store", f"store {AN_INPUT}", INPUT),
    on(PLOT, "--out store/pictures", f"store {AN_INPUT}", INPUT),
    on(
        f"{PLOT} --forecasts forecasts.parquet",
        "--overwrite --out p.png",
        AN_INPUT,
        INPUT,
        linked("p.png", "forecasts.parquet"),
    ),
    on(EXPORT, "--out store/val/x.json", f"store {AN_INPUT}", INPUT),
    on(
        "weights convert trajformer run/best.ckpt",
        "--overwrite run/best.ckpt",
        f"run/best.ckpt {AN_INPUT} .file.",
        INPUT,
    ),
    on(
        "train --config recipe.yaml", "--out store/val/run", f"store {AN_INPUT} .data.train.", INPUT
    ),
    on("train --config mine/config.yaml", "--out mine", AN_INPUT, INPUT, MINE),
    on(
        SCORE,
        "--json x --csv x",
        "--json and --csv: give different files",
        Guard(RULE, "if len(targets) < len(outputs):"),
    ),
    on(
        TRAIN,
        "run",
        "run: already contains a run; continue it with --resume or give another --out",
        FINISHED,
    ),
    on(TRAIN, "mine", "mine: has a best.ckpt but no last.ckpt to continue from", ALONE, MINE),
    on(
        f"{TRAIN} mine",
        "--resume",
        "mine: has a best.ckpt but no last.ckpt to continue from",
        ALONE,
        MINE,
    ),
    works(
        "resume where nothing was started",
        f"{TRAIN} fresh --resume",
        "fresh: has no last.ckpt to resume",
        guard=NOTHING,
    ),
]
PREPARE_OTHER, PREPARE_MOVED = (
    "preprocess argoverse2 other_raw",
    "preprocess argoverse2 moved store",
)
UNKNOWN, FINISHED_SHARDS = (
    "store/val: was prepared from an unknown data set in an unknown folder",
    "1 of 1 shards were already",
)
RECORD = {"changes": ("source.json",)}
OTHERS: dict[str, Any] = {
    "changes": ("store/**", "store/*/*"),
    "makes": (("store/val/source.json", "/other_raw"),),
}
FROM = r"was prepared from argoverse2 .*\braw, not from argoverse"
SOURCES = [
    on(PREPARE_OTHER, "store", f"store/test: {FROM}2 .*/other_raw: ", SOURCE),
    on("preprocess argoverse1 argoverse1", "store --split train", f"{FROM}1 ", SOURCE),
    on(f"{PREPARE_RAW} --limit 1", "store", f"{FROM}2 ", SOURCE),
    on(
        PREPARE_OTHER,
        "store --split val",
        UNKNOWN,
        SOURCE,
        lambda: os.remove("store/val/source.json"),
    ),
    works(
        "score an incomplete store",
        "evaluate --model constant_velocity --store store",
        "store: has no manifest.json: its preparation did not end",
        lambda: os.remove("store/manifest.json"),
        Guard("trajformer/cli/models.py", "    _warn_if_interrupted(args.store)\n", ""),
    ),
    works("prepare the same store again", f"{PREPARE_RAW} store", FINISHED_SHARDS, **RECORD),
    works(
        "prepare from a moved raw folder",
        PREPARE_MOVED,
        FINISHED_SHARDS,
        lambda: Path("raw").rename("moved"),
        **RECORD,
    ),
    works(
        "replace the scenes of another raw folder on request",
        f"{PREPARE_OTHER} store --overwrite",
        "val: 2 scenes",
        **OTHERS,
    ),
    Case(
        "merge onto a store",
        "store merge store --out run",
        "run: not empty, and not from an earlier run of this merge",
        guard=OTHER_MERGE,
    ),
]
HELD = r"another run is writing to this folder \(process \d+ on .*\); wait"
LOCKS = [
    replace(
        on(command, output, f"{folder}: {HELD}", LOCKED, also(table, locked(folder))),
        changes=(".lock",),
    )
    for command, output, folder in (
        (TRAIN, "fresh", "fresh"),
        ("demo --scenes 4 --epochs 1 --out", "demo", "demo"),
        ("synthesize --scenes 1", "fresh", "fresh"),
        (PREPARE_RAW, "fresh", "fresh/test"),
        ("store merge store --out", "fresh", "fresh"),
        ("tools/compare/models.py --store store --table table.yaml --out", "fresh", "fresh"),
    )
]
LOCKS += [
    works(use, command, r"\A(?!.*warning)", prepare, guard, changes=("fresh/.lock",), makes=makes)
    for use, command, prepare, makes, guard in (
        (
            "take over the lock of a killed training",
            f"{TRAIN} fresh",
            abandoned("fresh"),
            (("fresh/config.yaml", "future: 60"),),
            None,
        ),
        (
            "take over the lock of a merge killed while it locked",
            "store merge store --out fresh",
            empty_lock,
            (),
            EMPTY_LOCK,
        ),
    )
]
NO_FILE = "cannot be written: neither a file nor a folder"
LOOP = also(linked("a", "b"), linked("b", "a"))
FAR = also(lambda: os.mkdir("far"), linked("near.json", "far/figures.json"))
NEAR, TO_NEAR = linked("near.json", "figures.json"), f"{SCORE} --json near.json"
DEVICES = [
    on(SCORE, "--json /dev/full", f"/dev/full: {NO_FILE}", SPECIAL),
    on(PREDICT, "--out /dev/null", f"/dev/null: {NO_FILE}", SPECIAL),
    on(PLOT, "--out full.png", f"full.png: {NO_FILE}", SPECIAL, linked("full.png", "/dev/full")),
    on(SCORE, "--json pipe", f"pipe: {NO_FILE}", SPECIAL, lambda: os.mkfifo("pipe")),
    on(PREDICT, "--overwrite --out pipe", f"pipe: {NO_FILE}", SPECIAL, lambda: os.mkfifo("pipe")),
    on(PLOT, "--out pipe", f"pipe: {NO_FILE}", SPECIAL, lambda: os.mkfifo("pipe")),
    on(
        SCORE,
        "--json socket",
        f"socket: {NO_FILE}",
        SPECIAL,
        lambda: socket.socket(socket.AF_UNIX).bind("socket"),
    ),
    replace(
        on(SCORE, "--json standard_output", f"standard_output: {NO_FILE}", SPECIAL, piped_output),
        use="figures to a piped standard output",
    ),
    works(
        "figures behind a link",
        TO_NEAR,
        prepare=FAR,
        guard=LINK,
        makes=(("far/figures.json", "minFDE6"),),
    ),
    works(
        "replace figures behind a link",
        f"{TO_NEAR} --overwrite",
        "",
        NEAR,
        LINK,
        changes=("figures.json",),
        makes=FIGURES,
    ),
    on(SCORE, "--json near.json", f"near.json: {EXISTS}", EXISTING, NEAR),
    on(SCORE, "--json a", "a: cannot be written: Too many levels of symbolic links", FAILS, LOOP),
]
DENIED = also(lambda: os.mkdir("dir"), as_nobody("dir"))
ODD = ("evaluate", "--model", "constant_velocity", "--store", "a\n🚗 b", "--json", "ü 🚗.json")
UNWRITABLE = [
    on(command, output, line, guard)
    for command, output, line, guard in (
        ("synthesize --scenes 1", "notes.txt/out", "notes.txt", SYSTEM),
        ("synthesize --scenes 1", "notes.txt", "notes.txt", SYSTEM),
        ("demo --out", "notes.txt/out", "notes.txt", SYSTEM),
        (PREPARE_RAW, "notes.txt/out", "notes.txt", (IN_STORE, SYSTEM)),
        (
            TRAIN,
            "notes.txt/out",
            "notes.txt.*cannot be written|cannot be written.*notes.txt",
            IN_RUN,
        ),
        (SCORE, "--json notes.txt/out", "notes.txt is not a folder", IN_FOLDER),
        (PREDICT, "--out notes.txt/out", "notes.txt is not a folder", IN_FOLDER),
        (PLOT, "--out notes.txt/out", "notes.txt is not a folder", IN_FOLDER),
        (PLOT, "--out notes.txt", "notes.txt is not a folder", IN_FOLDER),
        (SCORE, "--csv other_raw", "other_raw: cannot be written: is a folder", A_FOLDER),
    )
]
UNWRITABLE += [
    on(SCORE, "--json dir/f", "dir/f: cannot be written: Permission denied", RIGHTS, DENIED),
    on(
        SCORE,
        "--overwrite --json figures.json",
        "Permission denied",
        RIGHTS,
        as_nobody("figures.json"),
    ),
    on(TRAIN, "dir", "dir.*: .*Permission denied", (IN_RUN, SYSTEM), DENIED),
    on(PREPARE_RAW, "dir", "dir/.*Permission denied", (IN_STORE, SYSTEM), DENIED),
    works(
        "odd names",
        ODD,
        prepare=lambda: shutil.copytree("store", "a\n🚗 b"),
        makes=(("ü 🚗.json", "minFDE6"),),
    ),
    Case("an odd name that does not exist", ODD[:5], "a 🚗 b: no such store", guard=HAS_STORE),
    Case(
        "a name that is not text",
        (*ODD[:4], os.fsdecode(b"\xff")),
        "no such store",
        guard=HAS_STORE,
    ),
]

CASES = [*EXISTING_FILES, *INPUTS, *SOURCES, *LOCKS, *DEVICES, *UNWRITABLE]
