"""Remove each guard of the table of uses in a copy of the source, and check that its cases fail.

    python tools/remove_guards.py [-k EXPRESSION]

A guard is a check in the source that a case names (`Guard` in tests/support/uses.py). A case that passes without its guards is an
error. The tool prints the first difference of each case from its expected end. Before, all cases must pass with their guards.
Libraries are imported once; a process for each guard imports the project from the copy.
"""

import argparse
import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from support.uses import PRELOAD, TABLES, Guard, prepare_files, tables  # noqa: E402

PARTS = ("trajformer", "data_prep", "tests", "tools", "configs", "pyproject.toml")
PROJECT = (
    "trajformer",
    "data_prep",
    "support",
    "uses",
)  # packages that are imported again from the copy


def prepare_silently(folder: Path) -> None:
    """Make the files of all cases."""
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        prepare_files(folder)


def in_process(function: Callable[..., object], *arguments: Any) -> bool:
    """Whether a function ends without an error in a forked process."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode == 0


def run_cases(copy: Path, uses: list[str], prepared: Path, passing: bool = False) -> None:
    """Run cases with the source in a copy; ends with status 1 if any passes, or if `passing` and any fails."""
    for name in list(sys.modules):
        if name.partition(".")[0] in PROJECT:
            del sys.modules[name]
    sys.modules["__main__"] = ModuleType(
        "__main__"
    )  # a spawned process imports the file of this module
    sys.path[:0] = [str(copy), str(copy / "tests"), str(copy / "tools")]
    for name in (*PRELOAD, *TABLES):
        import_module(name)
    support, processes = import_module("support.uses"), import_module("support.processes")
    os.environ |= processes.environment(
        PYTHONPATH=os.pathsep.join(sys.path[:3]), PYTHONDONTWRITEBYTECODE="1"
    )
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(case for case in support.tables() if case.use in uses):
            found = support.problems(
                case, support.run_case(case, prepared, Path(folder, str(number)), "fork")
            )
            wrong |= passing == bool(found)
            if found or not passing:
                print(f"    {case.use}: {found[0] if found else 'PASSES'}", flush=True)
    sys.exit(wrong)


def main() -> int:
    """Run the command line; returns 1 if a case passes without its guards."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="", help="only cases with this text in their use")
    args = parser.parse_args()
    by_guards: dict[tuple[Guard, ...], list[str]] = defaultdict(list)
    for case in tables():
        if case.guards and args.k in case.use:
            by_guards[case.guards].append(case.use)
    wrong = 0
    with tempfile.TemporaryDirectory() as copy_name, tempfile.TemporaryDirectory() as files:
        copy = Path(copy_name)
        for part in PARTS:
            (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, copy / part)
        in_process(prepare_silently, Path(files))
        if not in_process(
            run_cases, copy, [use for uses in by_guards.values() for use in uses], Path(files), True
        ):
            print("these cases fail with their guards")
            return 1
        for guards, uses in by_guards.items():
            before = {
                guard.file: (copy / guard.file).read_text(encoding="utf-8") for guard in guards
            }
            for guard in guards:
                file = copy / guard.file
                file.write_text(
                    file.read_text(encoding="utf-8").replace(guard.text, guard.replacement),
                    encoding="utf-8",
                )
                print(f"{guard.file}: {guard.text.strip().splitlines()[0]}", flush=True)
            wrong += not in_process(run_cases, copy, uses, Path(files))
            for name, text in before.items():
                (copy / name).write_text(text, encoding="utf-8")
    total = sum(map(len, by_guards.values()))
    print(
        f"{len({guard for guards in by_guards for guard in guards})} guards, {total} cases; {wrong} with a case that passes"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
