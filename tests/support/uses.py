"""Cases of the table of uses: each is one command in its own process, with a copy of the same prepared files.

The processes are forked from a server that has imported the package, because importing torch takes seconds.
"""

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
from collections.abc import Callable
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

ROOT = Path(__file__).parents[2]
PRELOAD = [
    "trajformer.cli.preprocess",
    "trajformer.cli.protocols",
    "trajformer.cli.store",
    "trajformer.cli.tasks",
    "trajformer.cli.train",
    "trajformer.cli.weights",
    "trajformer.cli.demo",
    "trajformer.cli.plot",
]
PRELOAD += [
    "trajformer.training.run",
    "trajformer.evaluation.evaluate",
    "trajformer.plotting.scene",
]
PRELOAD += ["trajformer.recipes.checkpoint", "data_prep.engine.prepare", "data_prep.readers.names"]
PROGRESS = re.compile(r"epoch \d+|stopping after this step")  # of a training, on standard error
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
data: {train: store, val: store, batch_size: 4, batch: {max_agents: 8, polyline_points: 4}}
trainer: {epochs: 1, threads: 1, accelerator: cpu, log_every: 1}
"""


@dataclass(frozen=True)
class Guard:
    """A check in the source; without it, a case fails."""

    file: str
    text: str  # occurs once in the file
    replacement: str = "if False:"


@dataclass(frozen=True)
class Stop:
    """A signal during a command: Ctrl-C is sent to all its processes, as by a terminal, SIGTERM to the first."""

    signal: signal.Signals
    file: str  # the pattern of a file that is waited for before
    after_s: float = 0.0


@dataclass(frozen=True)
class Case:
    """A use of the program and its expected end.

    All prepared files must be unchanged afterwards, and no temporary file may be left. An error is one line.
    """

    use: str  # in words; the name of the test
    run: (
        str | tuple[str, ...] | Callable[[], object]
    )  # words after `trajformer` or "tools/x.py", or a function of the API
    line: str = ""  # regular expression in the error line, or in the output if `status` is 0
    prepare: Callable[[], object] = list  # runs before the command, in its process and folder
    guard: Guard | tuple[Guard, ...] | None = (
        None  # several are removed together: each stops the command
    )
    _: KW_ONLY
    status: int = 1
    changes: tuple[str, ...] = ()  # patterns of files that the command may change
    makes: tuple[
        tuple[str, str], ...
    ] = ()  # files that exist afterwards, and a regular expression in each
    absent: tuple[str, ...] = ()  # patterns of new files that must not exist afterwards
    stop: Stop | None = None
    limit_s: float = 90.0

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The checks that are removed together."""
        return (self.guard,) if isinstance(self.guard, Guard) else self.guard or ()


@dataclass(frozen=True)
class End:
    """The end of a case: exit status (negative: signal; None: time limit), output, and files before and after."""

    status: int | None
    out: str
    err: str
    before: Files
    after: Files
    texts: Files  # content of the files that the case names


def prepare_files(folder: Path) -> Path:
    """Make the files of all cases.

    raw/ and other_raw/ are Argoverse 2 folders with the splits train, val and test; store/ is made from raw/, and run/ is a model
    trained on it. forecasts.parquet, figures.json and recipe.yaml belong to it. argoverse1/, eth_ucy/ ... are raw folders of the
    other readers. notes.txt is a text of the user.
    """
    before = Path.cwd()
    os.chdir(folder)
    try:
        for raw, count in (("raw", 3), ("other_raw", 2)):
            for split in ("train", "val", "test"):
                for number in range(count):
                    columns = fixtures.argoverse2_columns(seed=number)
                    if split == "test":
                        columns = {
                            name: values[columns["observed"]] for name, values in columns.items()
                        }
                    name = f"{raw}-{split}-{number}"
                    columns["scenario_id"] = np.full(len(columns["heading"]), name)
                    fixtures.write_argoverse2(Path(raw), columns, split=split, uuid=name)
        for name, write in FOLDERS.items():
            if name != "argoverse2":
                write(Path(name))
        Path("notes.txt").write_text("notes\n")
        Path("recipe.yaml").write_text(RECIPE)
        model = "--checkpoint run/best.ckpt --store store"
        for words in (
            "preprocess argoverse2 raw store --workers 1",
            "train --config recipe.yaml --out run",
            f"evaluate {model} --json figures.json",
            f"predict {model} --out forecasts.parquet",
        ):
            assert run(*words.split()) == 0, words
    finally:
        os.chdir(before)
    return folder


def cut(path: str, share: float = 0.9) -> Callable[[], object]:
    return lambda: Path(path).write_bytes(
        (data := Path(path).read_bytes())[: int(len(data) * share)]
    )


def files_below(folder: Path) -> Files:
    """A digest of each regular file, the target of each link, the type of everything else."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # a process that was stopped at its limit may still be ending
            continue
        if stat.S_ISLNK(mode):
            value = f"link to {os.readlink(path)}"
        elif stat.S_ISREG(mode):
            try:
                value = hashlib.sha256(path.read_bytes()).hexdigest()
            except PermissionError:
                value = "unreadable"
        else:
            value = str(stat.S_IFMT(mode))
        found[os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace")] = value
    return found


def _command(case: Case) -> int:
    from trajformer import cli

    if callable(case.run):
        return cli.exit_status("python", case.run)
    words = shlex.split(case.run) if isinstance(case.run, str) else list(case.run)
    try:
        if words[0].startswith("tools/"):
            sys.argv, sys.path[:0] = words, [str(ROOT / "tools")]
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
            return 0
        return cli.main(words)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1


def tables() -> list[Case]:
    """All cases, from the lists `CASES` of the modules in `tests/uses`."""
    modules = [import_module(name) for name in TABLES]
    return [case for module in modules for case in module.CASES]


def _child(use: str, folder: Path, pipe: Connection) -> None:
    """The process of a case: output to files next to its folder, preparation, and the command."""
    os.setsid()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell starts background jobs with an ignored Ctrl-C
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the process ends with the tests
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT), number)
    [case] = [case for case in tables() if case.use == use]
    case.prepare()
    pipe.send(files_below(folder))
    status = _command(case)
    sys.stdout.flush()
    sys.exit(status)  # also ends child processes, as at the end of a program


def start_server() -> None:
    """Start the process that is forked for each case; later calls do nothing."""
    multiprocessing.set_forkserver_preload([*PRELOAD, "support.uses", *TABLES])
    before = os.environ.copy()
    os.environ |= environment(
        PYTHONPATH=os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tools")))
    )
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ |= before


def _is_alive(process: BaseProcess) -> bool:
    with _LOCK:  # two threads must not ask at the same time: the exit status can be read once
        return process.is_alive()


def run_case(case: Case, prepared: Path, folder: Path, method: str = "forkserver") -> End:
    """Run a case in a new folder, in a process that starts by this method of `multiprocessing`."""
    shutil.copytree(prepared, folder, symlinks=True)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context(method).Process(
        target=_child, args=(case.use, folder, sender)
    )
    with _LOCK:
        process.start()
    sender.close()
    before: Files = receiver.recv()
    limit = time.monotonic() + case.limit_s
    if case.stop is not None:
        while (
            not any(folder.glob(case.stop.file)) and _is_alive(process) and time.monotonic() < limit
        ):
            time.sleep(0.01)
        time.sleep(case.stop.after_s)
        if _is_alive(process):
            (os.killpg if case.stop.signal == signal.SIGINT else os.kill)(
                process.pid, case.stop.signal
            )
        limit = time.monotonic() + STOP_S
    while (_is_alive(process) or session(process.pid)) and time.monotonic() < limit:
        time.sleep(0.02)
    if running := session(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        while _is_alive(process):
            time.sleep(0.02)
    out, err = (Path(f"{folder}.{name}").read_text(errors="replace") for name in ("out", "err"))
    texts = {
        name: path.read_text(errors="replace")
        for name, _ in case.makes
        if (path := folder / name).is_file()
    }
    return End(None if running else process.exitcode, out, err, before, files_below(folder), texts)


def problems(case: Case, end: End) -> list[str]:
    """Differences between the expected end of a case and its end; an empty list for a correct one."""
    found = []
    if end.status != case.status:
        found.append(
            "does not end"
            if end.status is None
            else f"exit status {end.status}, expected {case.status}"
        )
    if "Traceback" in end.err:
        found.append("traceback")
    lines = [line for line in end.err.splitlines() if not PROGRESS.match(line)]
    if case.status and len(lines) != 1:
        found.append(f"{len(lines)} lines on standard error, expected 1")
    text = end.err if case.status else end.out + end.err
    if not re.search(case.line, text):
        found.append(f"no line with {case.line!r}")
    for name, content in end.before.items():
        if end.after.get(name) != content and not any(
            Path(name).match(pattern) for pattern in case.changes
        ):
            found.append(f"{name} is changed")
    new = [name for name in end.after if name not in end.before]
    left = [
        name
        for name in new
        if TEMPORARY.search(Path(name).name) or any(map(Path(name).match, case.absent))
    ]
    found += [f"{name} is left" for name in left]
    for name, content in case.makes:
        if not re.search(content, end.texts.get(name, "")):
            found.append(f"{name} has no {content!r}")
    if "executed" in end.after:
        found.append("code of a file was executed")
    return found
