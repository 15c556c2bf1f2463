"""A server for the page on this computer: http://127.0.0.1:PORT/TOKEN/.

It answers a browser that has the address with its random token, and no other page, computer or
program. Requests name a part of the page or the number of a scene, never a file.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from trajformer.errors import TrajformerError, one_line
from trajformer.plotting.page.build import security_policy
from trajformer.plotting.page.live import LivePage, Query

HOST = "127.0.0.1"
TOKEN_BYTES = 24
MAX_TARGET = 4096  # characters of the address of a request
MAX_CONNECTIONS = 32  # at the same time
TIMEOUT_S = 10.0  # for a request to arrive
_SCENE = re.compile(r"scene/([0-9]{1,12})")
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_BYTES = "application/octet-stream"


class PageServer(ThreadingHTTPServer):
    """Serves a page until `shutdown`; `address` opens it.

    Raises TrajformerError: the port is used by another program or reserved.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, page: LivePage, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise TrajformerError(f"port {port}: {reason}; leave out --port") from error
        self.page = page
        self.policy = f"{security_policy(requests=True)}; frame-ancestors 'none'"
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.origins = [f"http://{name}:{self.server_port}" for name in (HOST, "localhost")]
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"{self.origins[0]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; with too many open connections, close the new one."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close a connection early."""
        if not isinstance(sys.exception(), ConnectionError | socket.timeout):
            super().handle_error(request, client_address)


class _Refused(Exception):
    """A request without an answer: its status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One request; connections are closed after the answer."""

    server: PageServer
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        try:
            kind, content = self._answer()
        except _Refused as error:
            self.send_error(error.status)
        except IndexError:
            self.send_error(HTTPStatus.NOT_FOUND)
        except TrajformerError as error:  # a damaged shard, for example
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", _line(str(error)))
        else:
            self._send(HTTPStatus.OK, kind, content)

    def _answer(self) -> tuple[str, bytes]:
        """Type and content of the answer (_Refused: no such file)."""
        self._check_sender()
        if len(self.path) > MAX_TARGET:
            raise _Refused(HTTPStatus.REQUEST_URI_TOO_LONG)
        if not self.path.startswith("/"):  # an absolute address, of a request to a proxy
            raise _Refused(HTTPStatus.BAD_REQUEST)
        path, _, query = self.path[1:].partition("?")
        token, _, part = path.partition("/")
        # the comparison takes the same time for all wrong tokens
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise _Refused(HTTPStatus.FORBIDDEN)
        return self._part(part, query)

    def _check_sender(self) -> None:
        """Refuse names of other hosts (DNS rebinding), other origins, and content."""
        hosts = [urlsplit(origin).netloc for origin in self.server.origins]
        if self.headers.get_all("Host", []) not in [[host] for host in hosts]:
            raise _Refused(HTTPStatus.FORBIDDEN)
        origins = self.headers.get_all("Origin", [])
        if any(origin not in self.server.origins for origin in origins):
            raise _Refused(HTTPStatus.FORBIDDEN)
        has_content = self.headers.get("Content-Length", "0") != "0"
        if has_content or "Transfer-Encoding" in self.headers:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _part(self, part: str, query: str) -> tuple[str, bytes]:
        page = self.server.page
        scene = _SCENE.fullmatch(part)
        if scene:
            return _BYTES, page.scene(int(scene[1]))
        if part == "":
            return _HTML, page.html()
        if part == "rows":
            return _JSON, json.dumps(page.rows(_query(_values(query)))).encode()
        if part == "find":
            number = page.find(_values(query).get("id", ""))
            return _JSON, json.dumps({"number": number}).encode()
        raise _Refused(HTTPStatus.NOT_FOUND)

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A line with the status; it repeats nothing of the request."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._send(status, "text/plain", _line(status.phrase))

    def version_string(self) -> str:
        """Name of the server, without versions."""
        return "trajformer"

    def log_message(self, format: str, *args: Any) -> None:
        """No log: addresses have the token."""


def _line(text: str) -> bytes:
    return f"{one_line(text)}\n".encode()


def _values(query: str) -> dict[str, str]:
    """Values of the address, the last one of each name (_Refused: too many)."""
    try:
        pairs = parse_qs(query, keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST) from error
    return {name: values[-1] for name, values in pairs.items()}


def _query(values: Mapping[str, str]) -> Query:
    """The part of the list that an address requests (_Refused: a value is no small number)."""
    numbers = {}
    for name in ("start", "column", "part"):
        text = values.get(name, "")
        if not re.fullmatch("[0-9]{0,12}", text):
            raise _Refused(HTTPStatus.BAD_REQUEST)
        numbers[name] = int(text) if text else None
    part = numbers["part"]
    if part not in (None, 0, 1):
        raise _Refused(HTTPStatus.BAD_REQUEST)
    return Query(
        start=numbers["start"] or 0,
        search=values.get("search", ""),
        column=numbers["column"],
        part=1 if part is None else part,
        descending=values.get("order") != "ascending",
    )
