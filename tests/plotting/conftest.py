"""A browser for tests of pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser without a window; without one the tests are skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    paths = [shutil.which(name) for name in BROWSERS]
    program = next((path for path in paths if path), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with api.sync_playwright() as driver:
        # root has no sandbox; the pages are files of these tests
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
