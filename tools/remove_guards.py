"""Remove each guard of the table of uses in a copy of the source, and check that its cases fail.

    python tools/remove_guards.py [-k EXPRESSION]

A guard is a check in the source that a case names (`Guard` in tests/support/uses.py). A guard without a failing case is an error.
"""

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.uses import Case, Guard, prepare_files, tables  # noqa: E402

PARTS = ("trajformer", "data_prep", "tests", "tools", "configs", "pyproject.toml")


def survivors(guard: Guard, cases: list[Case], prepared: Path) -> str:
    """The output of the cases in a copy of the source without the guard if any passes, else an empty text."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for part in PARTS:
            (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, copy / part)
        file = copy / guard.file
        before = file.read_text(encoding="utf-8")
        file.write_text(before.replace(guard.text, guard.replacement), encoding="utf-8")
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/test_uses.py::test_use[{case.use}]" for case in cases)]
        environment = os.environ | {"PYTHONPATH": str(copy), "TRAJFORMER_USES": str(prepared)}
        done = subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True)
        failed = done.stdout.count("FAILED tests/test_uses.py")
        return "" if done.returncode == 1 and failed == len(cases) else done.stdout[-2000:] + done.stderr[-2000:]


def main() -> int:
    """Run the command line; returns 1 if a case passes without its guard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="only cases with this text in their use")
    args = parser.parse_args()
    by_guard: dict[Guard, list[Case]] = defaultdict(list)
    for case in tables():
        if case.guard is not None and args.k in case.use:
            by_guard[case.guard].append(case)
    passed = 0
    with tempfile.TemporaryDirectory() as name:
        nothing = io.StringIO()  # commands ask whether their output is a terminal, so None would be an error
        with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            prepared = prepare_files(Path(name))
        for guard, cases in by_guard.items():
            text = survivors(guard, cases, prepared)
            passed += bool(text)
            check = guard.text.strip().splitlines()[0]
            print(f"{guard.file}: {check}: {'PASSES' if text else 'fails'}: {len(cases)} cases", flush=True)
            print(text, end="")
    print(f"{len(by_guard)} guards, {passed} with a case that passes without it")
    return int(passed > 0)


if __name__ == "__main__":
    sys.exit(main())
