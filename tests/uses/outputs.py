"""Outputs on existing files, inputs, devices, pipes and links, and in read-only folders."""

import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.uses import Case

from trajformer.scenes.files import lock_folder

CONSTANT = "--model constant_velocity --store store"
TRAINED = "--checkpoint run/best.ckpt --store store"
SCORE = f"evaluate {CONSTANT}"
PREDICT = f"predict {CONSTANT}"
PLOT = "plot store"
EXPORT = "store export-scene store --scene raw-val-0"
PREPARE_RAW = "preprocess argoverse2 raw"
TRAIN = "train --config recipe.yaml --out"
EXISTS = "exists; give another name, or --overwrite to replace it"
AN_INPUT = "is an input of this command"
HELD = r"another run is writing to this folder \(process \d+ on .*\); wait"


# ---- preparation -------------------------------------------------------------------------------


def also(*steps: Callable[[], object]) -> Callable[[], object]:
    def take_steps() -> None:
        for step in steps:
            step()

    return take_steps


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


def set_mode(path: Path, folder_mode: int, file_mode: int) -> None:
    if path.is_dir():
        path.chmod(folder_mode)
    else:
        path.chmod(file_mode)


def as_nobody(*paths: str) -> Callable[[], object]:
    """Continue as a user without rights, who may write in the folder of the case except here."""

    def change() -> None:
        folder = Path.cwd()
        for path in (folder, *folder.rglob("*")):
            set_mode(path, 0o777, 0o666)
        for name in paths:
            set_mode(Path(name), 0o555, 0o444)
        for parent in folder.parents[:-2]:
            parent.chmod(0o755)
        if os.getuid() == 0:
            os.setuid(65534)

    return change


def locked(folder: str) -> Callable[[], object]:
    """A folder that another process has locked, which lives as long as the process of the case."""

    def lock() -> None:
        ready, locked = os.pipe()
        end, alive = os.pipe()
        if os.fork():
            os.close(end)
            os.read(ready, 1)
            return
        os.setsid()
        os.close(alive)
        with lock_folder(Path(folder)):
            os.write(locked, b" ")
            # returns at the end of the process of the case, which has the other side
            os.read(end, 1)
        os._exit(0)

    return lock


def abandoned(folder: str) -> Callable[[], object]:
    """A folder with the lock of a process that was killed."""

    def lock() -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        with lock_folder(Path(folder)):
            os.kill(os.getpid(), signal.SIGKILL)

    return lock


def empty_lock() -> None:
    """A folder with the lock of a process that was killed before it wrote its name."""
    Path("fresh").mkdir()
    Path("fresh/.lock").touch()


# ---- cases ---------------------------------------------------------------------------------------


def on(command: str, output: str, line: str, prepare: Callable[[], object] = list) -> Case:
    """A command on an output that must be kept."""
    run = f"{command} {output}"
    use = run.replace("/", ":")
    if prepare is not list:
        use += ", prepared"
    return Case(use, run, line, prepare)


def works(
    use: str, run: Any, line: str = "", prepare: Callable[[], object] = list, **more: Any
) -> Case:
    return Case(use, run, line, prepare, status=0, **more)


def refuses_locked(command: str, output: str, folder: str | None = None) -> Case:
    """A command on an output that another process has locked (or a folder in it)."""
    folder = folder or output
    case = on(command, output, f"{folder}: {HELD}", also(table, locked(folder)))
    return replace(case, changes=(".lock",))


def takes_over(use: str, command: str, prepare: Callable[[], object], **more: Any) -> Case:
    """A command on a folder with the lock of a process that has ended."""
    no_warning = r"\A(?!.*warning)"
    return works(use, command, no_warning, prepare, changes=("fresh/.lock",), **more)


def make_pipe() -> None:
    os.mkfifo("pipe")


def make_socket() -> None:
    socket.socket(socket.AF_UNIX).bind("socket")


FIGURES = (("figures.json", "minFDE6"),)
MINE = also(
    lambda: os.mkdir("mine"),
    copied("recipe.yaml", "mine/config.yaml"),
    copied("run/best.ckpt", "mine"),
)
EXISTING_FILES = [
    on(SCORE, "--json figures.json", f"figures.json: {EXISTS}"),
    on(SCORE, "--csv notes.txt", f"notes.txt: {EXISTS}"),
    on(PREDICT, "--out forecasts.parquet", f"forecasts.parquet: {EXISTS}"),
    on(PLOT, "--out p.png", f"p.png: {EXISTS}", lambda: Path("p.png").write_bytes(b"\x89PNG")),
    on("view store", "--out notes.txt", f"notes.txt: {EXISTS}"),
    on(EXPORT, "--out s.json", EXISTS, copied("figures.json", "s.json")),
    on(
        "weights convert trajformer run/last.ckpt",
        "c.ckpt",
        EXISTS,
        copied("run/best.ckpt", "c.ckpt"),
    ),
    on(PLOT, "--out other_raw", "other_raw: has files; give another folder"),
    on(
        SCORE,
        "--overwrite --json notes.txt",
        "notes.txt: exists and is not a json file that this command wrote, so it is not replaced",
    ),
    on(SCORE, "--overwrite --json run/best.ckpt", "best.ckpt: exists and is not a json file"),
    on(SCORE, "--overwrite --csv figures.json", "figures.json: exists and is not a csv file"),
    on(PREDICT, "--overwrite --out run/best.ckpt", "best.ckpt: exists and is not a parquet file"),
    on(
        PLOT, "--overwrite --out best.png", "is not a png file", copied("run/best.ckpt", "best.png")
    ),
    on(
        "weights convert trajformer run/last.ckpt",
        "--overwrite figures.json",
        "figures.json: exists and is not a ckpt",
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
    ),
    on(PREDICT, "--overwrite --out store/val/00000.arrow", f"store {AN_INPUT} .store."),
    on(SCORE, "--overwrite --json store/manifest.json", f"store {AN_INPUT}"),
    on(SCORE, "--json store", f"store {AN_INPUT}"),
    on(PLOT, "--out store/pictures", f"store {AN_INPUT}"),
    on(
        f"{PLOT} --forecasts forecasts.parquet",
        "--overwrite --out p.png",
        AN_INPUT,
        linked("p.png", "forecasts.parquet"),
    ),
    on(EXPORT, "--out store/val/x.json", f"store {AN_INPUT}"),
    on(
        "weights convert trajformer run/best.ckpt",
        "--overwrite run/best.ckpt",
        f"run/best.ckpt {AN_INPUT} .file.",
    ),
    on("train --config recipe.yaml", "--out store/val/run", f"store {AN_INPUT} .data.train."),
    on("train --config mine/config.yaml", "--out mine", AN_INPUT, MINE),
    on(SCORE, "--json x --csv x", "--json and --csv: give different files"),
    on(
        TRAIN, "run", "run: already contains a run; continue it with --resume or give another --out"
    ),
    on(TRAIN, "mine", "mine: has a best.ckpt but no last.ckpt to continue from", MINE),
    on(
        f"{TRAIN} mine", "--resume", "mine: has a best.ckpt but no last.ckpt to continue from", MINE
    ),
    works(
        "resume where nothing was started",
        f"{TRAIN} fresh --resume",
        "fresh: has no last.ckpt to resume",
    ),
]
PREPARE_OTHER = "preprocess argoverse2 other_raw"
PREPARE_MOVED = "preprocess argoverse2 moved store"
UNKNOWN = "store/val: was prepared from an unknown data set in an unknown folder"
FINISHED_SHARDS = "1 of 1 shards were already"
RECORD = {"changes": ("source.json",)}
OTHERS: dict[str, Any] = {
    "changes": ("store/**", "store/*/*"),
    "makes": (("store/val/source.json", "/other_raw"),),
}
FROM = r"was prepared from argoverse2 .*\braw, not from argoverse"
SOURCES = [
    on(PREPARE_OTHER, "store", f"store/test: {FROM}2 .*/other_raw: "),
    on("preprocess argoverse1 argoverse1", "store --split train", f"{FROM}1 "),
    on(f"{PREPARE_RAW} --limit 1", "store", f"{FROM}2 "),
    on(PREPARE_OTHER, "store --split val", UNKNOWN, lambda: os.remove("store/val/source.json")),
    works(
        "score an incomplete store",
        "evaluate --model constant_velocity --store store",
        "store: has no manifest.json: its preparation did not end",
        lambda: os.remove("store/manifest.json"),
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
    ),
]
LOCKS = [
    refuses_locked(TRAIN, "fresh"),
    refuses_locked("demo --scenes 4 --epochs 1 --out", "demo"),
    refuses_locked("synthesize --scenes 1", "fresh"),
    refuses_locked(PREPARE_RAW, "fresh", folder="fresh/test"),
    refuses_locked("store merge store --out", "fresh"),
    refuses_locked("tools/compare/models.py --store store --table table.yaml --out", "fresh"),
    takes_over(
        "take over the lock of a killed training",
        f"{TRAIN} fresh",
        abandoned("fresh"),
        makes=(("fresh/config.yaml", "future: 60"),),
    ),
    takes_over(
        "take over the lock of a merge killed while it locked",
        "store merge store --out fresh",
        empty_lock,
    ),
]
NO_FILE = "cannot be written: neither a file nor a folder"
LOOP = also(linked("a", "b"), linked("b", "a"))
FAR = also(lambda: os.mkdir("far"), linked("near.json", "far/figures.json"))
NEAR = linked("near.json", "figures.json")
TO_NEAR = f"{SCORE} --json near.json"
DEVICES = [
    on(SCORE, "--json /dev/full", f"/dev/full: {NO_FILE}"),
    on(PREDICT, "--out /dev/null", f"/dev/null: {NO_FILE}"),
    on(PLOT, "--out full.png", f"full.png: {NO_FILE}", linked("full.png", "/dev/full")),
    on(SCORE, "--json pipe", f"pipe: {NO_FILE}", make_pipe),
    on(PREDICT, "--overwrite --out pipe", f"pipe: {NO_FILE}", make_pipe),
    on(PLOT, "--out pipe", f"pipe: {NO_FILE}", make_pipe),
    on(SCORE, "--json socket", f"socket: {NO_FILE}", make_socket),
    replace(
        on(SCORE, "--json standard_output", f"standard_output: {NO_FILE}", piped_output),
        use="figures to a piped standard output",
    ),
    works("figures behind a link", TO_NEAR, prepare=FAR, makes=(("far/figures.json", "minFDE6"),)),
    works(
        "replace figures behind a link",
        f"{TO_NEAR} --overwrite",
        "",
        NEAR,
        changes=("figures.json",),
        makes=FIGURES,
    ),
    on(SCORE, "--json near.json", f"near.json: {EXISTS}", NEAR),
    on(SCORE, "--json a", "a: cannot be written: Too many levels of symbolic links", LOOP),
]
DENIED = also(lambda: os.mkdir("dir"), as_nobody("dir"))
ODD = ("evaluate", "--model", "constant_velocity", "--store", "a\n🚗 b", "--json", "ü 🚗.json")
IN_A_FILE = "notes.txt/out"
NO_FOLDER = "notes.txt is not a folder"
UNWRITABLE = [
    on("synthesize --scenes 1", IN_A_FILE, "notes.txt"),
    on("synthesize --scenes 1", "notes.txt", "notes.txt"),
    on("demo --out", IN_A_FILE, "notes.txt"),
    on(PREPARE_RAW, IN_A_FILE, "notes.txt"),
    on(TRAIN, IN_A_FILE, "notes.txt.*cannot be written|cannot be written.*notes.txt"),
    on(SCORE, f"--json {IN_A_FILE}", NO_FOLDER),
    on(PREDICT, f"--out {IN_A_FILE}", NO_FOLDER),
    on(PLOT, f"--out {IN_A_FILE}", NO_FOLDER),
    on(PLOT, "--out notes.txt", NO_FOLDER),
    on(SCORE, "--csv other_raw", "other_raw: cannot be written: is a folder"),
    on(SCORE, "--json dir/f", "dir/f: cannot be written: Permission denied", DENIED),
    on(SCORE, "--overwrite --json figures.json", "Permission denied", as_nobody("figures.json")),
    on(TRAIN, "dir", "dir.*: .*Permission denied", DENIED),
    on(PREPARE_RAW, "dir", "dir/.*Permission denied", DENIED),
    works(
        "odd names",
        ODD,
        prepare=lambda: shutil.copytree("store", "a\n🚗 b"),
        makes=(("ü 🚗.json", "minFDE6"),),
    ),
    Case("an odd name that does not exist", ODD[:5], "a 🚗 b: no such store"),
    Case("a name that is not text", (*ODD[:4], os.fsdecode(b"\xff")), "no such store"),
]

CASES = [*EXISTING_FILES, *INPUTS, *SOURCES, *LOCKS, *DEVICES, *UNWRITABLE]
