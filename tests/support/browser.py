"""An open page in a browser, with everything that it logged and requested."""

import re
from pathlib import Path
from typing import Any


class View:
    def __init__(self, browser: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1200, "height": 700})
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.server = "file:"  # the only address that the page may use, in addition to files
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self.messages.append("a dialog"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path, address: str = "") -> "View":
        return self.visit(path.as_uri() + address)

    def visit(self, address: str) -> "View":
        """Open an address, and wait until the page shows a scene."""
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready=true]", state="attached")
        return self

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def texts(self, selector: str) -> list[str]:
        return list(self.page.locator(selector).all_inner_texts())

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def pixels(self) -> bytes:
        return bytes(self.page.locator("#canvas").screenshot())

    def wait(self, selector: str, pattern: str) -> None:
        """Wait until a text matches (the policy of the page forbids `wait_for_function`)."""
        options = {"has_text": re.compile(pattern)}
        self.page.locator(selector).filter(**options).wait_for()
