"""Cases of the table of uses: each is one command in a process and a copy of its files.

The processes are forked from a server that has imported the package, because importing torch takes
seconds.
"""

import concurrent.futures.process  # noqa: F401  unreadable once a use has no rights
import contextlib
import ctypes
import hashlib
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from support import fixtures
from support.cli import run
from support.processes import environment, session
from support.raw_folders import FOLDERS

from data_prep.engine import local_runner

ROOT = Path(__file__).parents[2]
PRELOAD = [
    "data_prep.engine.prepare",
    "data_prep.readers.names",
    "trajformer.cli.demo",
    "trajformer.cli.plot",
    "trajformer.cli.preprocess",
    "trajformer.cli.protocols",
    "trajformer.cli.store",
    "trajformer.cli.tasks",
    "trajformer.cli.train",
    "trajformer.cli.weights",
    "trajformer.evaluation.evaluate",
    "trajformer.plotting.scene",
    "trajformer.recipes.checkpoint",
    "trajformer.training.run",
]
# of a training, on standard error; the second is printed if a command is slow
PROGRESS = re.compile(
    r"train: |trajformer \w+: loading|epoch \d+|step \d+|stopping after this step"
)
TEMPORARY = re.compile(r"\.tmp$|^\.")  # names that no command may leave behind
STOP_S = 20.0  # between a signal and the end of all processes; 5 s on a machine without other work
TABLES = [f"uses.{path.stem}" for path in sorted((ROOT / "tests" / "uses").glob("*.py"))]
_LOCK = threading.Lock()
Files = dict[str, str]  # content of each file below a folder, by path
RECIPE = """
model:
  mmtransformer:
    num_future: 60
    steps_per_token: 7
    block: {width: 16, heads: 2, feedforward: 16, dropout: 0.1}
    motion_layers: [1, 1]
    map_layers: [1, 1]
    social_layers: [1, 2]
    map_width: 8
    max_polylines: 12
    max_neighbors: 4
data: {train: store, val: store, batch_size: 4, batch: {polyline_points: 4}}
trainer: {epochs: 1, threads: 1, accelerator: cpu, log_every: 1}
"""


@dataclass(frozen=True)
class Stop:
    """A signal during a command.

    Ctrl-C is sent to all its processes, as by a terminal, SIGTERM to the first.
    """

    signal: signal.Signals
    file: str  # the pattern of a file that is waited for before
    after_s: float = 0.0


@dataclass(frozen=True)
class Case:
    """A use of the program and its expected end.

    All prepared files must be unchanged afterwards, and no temporary file may be left. An error is
    one line.

    Attributes:
        use: the name of the test, in words.
        run: words after `trajformer` or "tools/x.py", or a function of the API.
        line: regular expression in the error line, or in the output if `status` is 0.
        prepare: runs before the command, in its process and folder.
        changes: patterns of files that the command may change.
        makes: files that exist afterwards, and a regular expression in each.
        absent: patterns of new files that must not exist afterwards.
        stop: a signal.
        limit_s: seconds until the command has failed.
        spawns: workers of `preprocess` start as for a user, which takes half a second. Otherwise
            they are forked, because the case is not about processes. True with a `stop`.
    """

    use: str
    run: str | tuple[str, ...] | Callable[[], object]
    line: str = ""
    prepare: Callable[[], object] = list
    _: KW_ONLY
    status: int = 1
    changes: tuple[str, ...] = ()
    makes: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()
    stop: Stop | None = None
    limit_s: float = 90.0
    spawns: bool = False


@dataclass(frozen=True)
class End:
    """The end of a case: exit status, output, and files before and after."""

    status: int | None  # negative: signal; None: time limit
    out: str
    err: str
    before: Files
    after: Files
    texts: Files  # content of the files that the case names


def prepare_files(folder: Path) -> Path:
    """Make the files of all cases.

    raw/ and other_raw/ are Argoverse 2 folders with the splits train, val and test; store/ is made
    from raw/, and run/ is a model trained on it. forecasts.parquet, figures.json, weights.ckpt and
    recipe.yaml belong to it. argoverse1/, eth_ucy/ ... are raw folders of the other readers.
    notes.txt is a text of the user.
    """
    with contextlib.chdir(folder):
        for split in ("train", "val", "test"):
            _write_scenarios("raw", split, 3)
            _write_scenarios("other_raw", split, 2)
        for name, write in FOLDERS.items():
            if name != "argoverse2":
                write(Path(name))
        Path("notes.txt").write_text("notes\n")
        Path("recipe.yaml").write_text(RECIPE)
        model = "--checkpoint run/best.ckpt --store store"
        _succeed("preprocess argoverse2 raw store --workers 1")
        _succeed("train --config recipe.yaml --out run")
        _succeed(f"evaluate {model} --json figures.json")
        _succeed(f"predict {model} --out forecasts.parquet")
        _succeed("weights convert trajformer run/best.ckpt weights.ckpt")
    return folder


def _write_scenarios(raw: str, split: str, count: int) -> None:
    for number in range(count):
        columns = fixtures.argoverse2_columns(seed=number)
        if split == "test":
            observed = columns["observed"]
            columns = {name: values[observed] for name, values in columns.items()}
        scene_id = f"{raw}-{split}-{number}"
        columns["scenario_id"] = np.full(len(columns["heading"]), scene_id)
        fixtures.write_argoverse2(Path(raw), columns, split=split, uuid=scene_id)


def _succeed(words: str) -> None:
    assert run(*words.split()) == 0, words


def cut(path: str, fraction: float = 0.9) -> Callable[[], object]:
    """Keep this fraction of a file."""

    def change() -> None:
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: int(len(content) * fraction)])

    return change


def files_below(folder: Path) -> Files:
    """A digest of each regular file, the target of each link, the type of everything else."""
    files = {}
    for path in sorted(folder.rglob("*")):
        # a process that was stopped at its limit may still be ending
        with contextlib.suppress(FileNotFoundError):
            name = os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace")
            files[name] = _content(path)
    return files


def _content(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link to {os.readlink(path)}"
    if not stat.S_ISREG(mode):
        return str(stat.S_IFMT(mode))
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except PermissionError:
        return "unreadable"


def _command(case: Case) -> int:
    from trajformer import cli
    from trajformer.cli.status import exit_status

    if callable(case.run):
        return exit_status("python", case.run)
    words = list(case.run)
    if isinstance(case.run, str):
        words = shlex.split(case.run)
    try:
        if words[0].startswith("tools/"):
            sys.argv = words
            sys.path.insert(0, str(ROOT / "tools"))
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
            return 0
        return cli.main(words)
    except SystemExit as stop:
        if stop.code is None:
            return 0
        if isinstance(stop.code, int):
            return stop.code
        print(stop.code, file=sys.stderr)
        return 1


def tables() -> list[Case]:
    """All cases, from the lists `CASES` of the modules in `tests/uses`."""
    cases: list[Case] = []
    for name in TABLES:
        cases += import_module(name).CASES
    return cases


def _child(use: str, folder: Path, pipe: Connection) -> None:
    """The process of a case: output to files next to its folder, preparation, and the command."""
    os.setsid()
    # Modules that are compiled on a full disk would be incomplete for all later processes.
    sys.dont_write_bytecode = True
    # a shell starts background jobs with an ignored Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the process ends with the tests
    os.chdir(folder)
    _redirect(1, f"{folder}.out")
    _redirect(2, f"{folder}.err")
    [case] = [case for case in tables() if case.use == use]
    if not case.spawns and case.stop is None:
        local_runner._CONTEXT = multiprocessing.get_context("fork")  # type: ignore[assignment]
    case.prepare()
    pipe.send(files_below(folder))
    status = _command(case)
    sys.stdout.flush()
    sys.exit(status)  # also ends child processes, as at the end of a program


def _redirect(descriptor: int, path: str) -> None:
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)


def start_server() -> None:
    """Start the process that is forked for each case; later calls do nothing."""
    modules = [*PRELOAD, "support.uses", *TABLES, "support.frozen_objects"]
    multiprocessing.set_forkserver_preload(modules)
    before = os.environ.copy()
    folders = (str(ROOT), str(ROOT / "tests"), str(ROOT / "tools"))
    os.environ |= environment(PYTHONPATH=os.pathsep.join(folders))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ |= before


def _is_alive(process: BaseProcess) -> bool:
    with _LOCK:  # two threads must not ask at the same time: the exit status can be read once
        return process.is_alive()


def run_case(case: Case, prepared: Path, folder: Path) -> End:
    """Run a case in a new folder, in a process that is forked from the server."""
    shutil.copytree(prepared, folder, symlinks=True)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_child, args=(case.use, folder, sender))
    with _LOCK:
        process.start()
    sender.close()
    before: Files = receiver.recv()
    end_time = time.monotonic() + case.limit_s
    if case.stop is not None:
        _stop(process, case.stop, folder, end_time)
        end_time = time.monotonic() + STOP_S
    while _is_alive(process) or session(process.pid):
        if time.monotonic() >= end_time:
            break
        time.sleep(0.02)
    running = session(process.pid)
    if running:
        os.killpg(process.pid, signal.SIGKILL)
        while _is_alive(process):
            time.sleep(0.02)
    end = End(
        status=None if running else process.exitcode,
        out=_text(Path(f"{folder}.out")),
        err=_text(Path(f"{folder}.err")),
        before=before,
        after=files_below(folder),
        texts={name: _text(folder / name) for name, _ in case.makes},
    )
    shutil.rmtree(folder, ignore_errors=True)  # the copies of all cases are 85,000 files
    return end


def _stop(process: BaseProcess, stop: Stop, folder: Path, end_time: float) -> None:
    """Send the signal as soon as the file of the stop exists."""
    while not any(folder.glob(stop.file)):
        if not _is_alive(process) or time.monotonic() >= end_time:
            break
        time.sleep(0.01)
    time.sleep(stop.after_s)
    if not _is_alive(process):
        return
    if stop.signal == signal.SIGINT:
        os.killpg(process.pid, stop.signal)
    else:
        os.kill(process.pid, stop.signal)


def _text(path: Path) -> str:
    """The text of a file; empty if there is no file."""
    if not path.is_file():
        return ""
    return path.read_text(errors="replace")


def problems(case: Case, end: End) -> list[str]:
    """Differences between the expected end of a case and its end; empty for a correct end."""
    return [*_wrong_output(case, end), *_wrong_files(case, end)]


def _wrong_output(case: Case, end: End) -> Iterator[str]:
    if end.status is None:
        yield "does not end"
    elif end.status != case.status:
        yield f"exit status {end.status}, expected {case.status}"
    if "Traceback" in end.err:
        yield "traceback"
    text = end.out + end.err
    if case.status:
        text = end.err
        lines = [line for line in end.err.splitlines() if not PROGRESS.match(line)]
        if len(lines) != 1:
            yield f"{len(lines)} lines on standard error, expected 1"
    if not re.search(case.line, text):
        yield f"no line with {case.line!r}"


def _wrong_files(case: Case, end: End) -> Iterator[str]:
    for name, content in end.before.items():
        if end.after.get(name) != content and not _matches(name, case.changes):
            yield f"{name} is changed"
    for name in end.after:
        is_left = TEMPORARY.search(Path(name).name) or _matches(name, case.absent)
        if name not in end.before and is_left:
            yield f"{name} is left"
    for name, content in case.makes:
        if not re.search(content, end.texts[name]):
            yield f"{name} has no {content!r}"
    if "executed" in end.after:
        yield "code of a file was executed"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    path = Path(name)
    return any(path.match(pattern) for pattern in patterns)
