"""The table of uses: mistakes end with one line, and no finished file is lost.

The cases are the lists `CASES` in the modules of `tests/uses`; see the README there.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from support.uses import Case, End, prepare_files, problems, run_case, start_server, tables

CASES = tables()


def selected_cases(request: pytest.FixtureRequest) -> list[Case]:
    """The cases that this process will test."""
    cases = []
    for item in request.session.items:
        if item.path == request.path and "case" in item.fixturenames:
            cases.append(item.callspec.params["case"])
    return cases


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[End]]]:
    """The end of each selected case; the cases run in parallel."""
    prepared = prepare_files(tmp_path_factory.mktemp("uses"))
    start_server()
    folder = tmp_path_factory.mktemp("cases")
    pool = ThreadPoolExecutor((os.cpu_count() or 1) + 1)  # some cases wait for seconds
    futures = {}
    try:
        for number, case in enumerate(selected_cases(request)):
            futures[case.use] = pool.submit(run_case, case, prepared, folder / str(number))
        yield futures
    finally:
        pool.shutdown(cancel_futures=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.use)
def test_use(case: Case, ends: dict[str, Future[End]]) -> None:
    end = ends[case.use].result()
    assert problems(case, end) == [], f"{case.run}\n{end.out}\n{end.err}"


def test_each_case_has_its_own_name() -> None:
    counts = Counter(case.use for case in CASES)
    assert [use for use, count in counts.items() if count > 1] == []
