"""The table of uses: mistakes at the command line and in Python end with one line, and no finished file is lost.

The cases are the lists `CASES` in the modules of `tests/uses`; see the README there.
"""

import os
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from support.uses import ROOT, Case, End, prepare_files, problems, run_case, start_server, tables

CASES = tables()


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Future[End]]:
    """The end of each selected case; the cases run in parallel."""
    prepared = prepare_files(tmp_path_factory.mktemp("uses"))
    start_server()
    items = [
        item
        for item in request.session.items
        if item.path == request.path and "case" in item.fixturenames
    ]
    selected = [item.callspec.params["case"] for item in items]
    folder, pool = tmp_path_factory.mktemp("cases"), ThreadPoolExecutor(os.cpu_count())
    try:
        yield {
            case.use: pool.submit(run_case, case, prepared, folder / str(n))
            for n, case in enumerate(selected)
        }
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.use)
def test_use(
    case: Case, ends: dict[str, Future[End]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    end = ends[case.use].result()
    assert problems(case, end) == [], f"{case.run}\n{end.out}\n{end.err}"


def test_the_table_is_consistent() -> None:
    assert [use for use, count in Counter(case.use for case in CASES).items() if count > 1] == []
    guards = {guard for case in CASES for guard in case.guards}
    assert [
        guard for guard in guards if (ROOT / guard.file).read_text().count(guard.text) != 1
    ] == []
