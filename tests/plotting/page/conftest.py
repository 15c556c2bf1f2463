"""A page in a browser."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.browser import View


@pytest.fixture
def view(browser: Any) -> Iterator[View]:
    opened = View(browser)
    yield opened
    opened.page.close()
    assert opened.messages == []
    own = [url for url in opened.requests if url.startswith(("file:", "blob:", opened.server))]
    assert opened.requests == own
