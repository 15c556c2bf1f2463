"""The served page: which requests are answered, and the limits of the browser."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.browser import View
from support.pictures import fans
from support.processes import environment
from support.scenes import make_scene

from trajformer.cli.view import scene_encoder
from trajformer.errors import TrajformerError
from trajformer.plotting.page.live import LivePage
from trajformer.plotting.page.server import MAX_TARGET, PageServer
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

HOSTILE = "<script><img src=x onerror=\"document.title='run'\">"
Ask = Callable[..., tuple[int, str, http.client.HTTPResponse]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """Three scenes, one with a hostile name, and forecasts by constant velocity."""
    folder = tmp_path_factory.mktemp("server")
    names = ["s0", "s1", HOSTILE]
    scenes = [make_scene(seed=seed, scene_id=name) for seed, name in enumerate(names)]
    write_shard(shard_path(folder, "val", 0), scenes, ShardInfo("synthetic", "val"))
    (folder / "secret.txt").write_text("secret")
    files = [{scene.scene_id: fans(scene) for scene in scenes}]
    encode = scene_encoder(files, load_predictor("constant_velocity"))
    store = SceneStore(folder, "val")
    page = LivePage(store, range(3), encode, files, ["file", "constant velocity"], HOSTILE)
    with PageServer(page) as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield started
        started.shutdown()
        thread.join()


@pytest.fixture
def ask(server: PageServer) -> Ask:
    """Sends a request; the address has the token unless it begins with /."""

    def send(
        part: str = "", method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, str, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        address = part if part.startswith("/") else f"/{server.token}/{part}"
        connection.putrequest(method, address, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode("latin-1")
        connection.close()
        return answer.status, text, answer

    return send


def test_the_page_is_answered_with_a_strict_policy(ask: Ask, server: PageServer) -> None:
    status, text, answer = ask()
    assert status == 200
    assert text.startswith("<!DOCTYPE html>")
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    policy = answer.getheader("Content-Security-Policy") or ""
    (in_page,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy == f"{in_page}; frame-ancestors 'none'"
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert "Python" not in (answer.getheader("Server") or "")
    assert HOSTILE not in text
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32


def test_the_list_and_scenes_are_answered(ask: Ask) -> None:
    status, text, answer = ask("rows?start=1&search=S1")
    assert status == 200
    assert answer.getheader("Content-Type") == "application/json"
    assert [row["id"] for row in json.loads(text)["rows"]] == []
    assert [row["id"] for row in json.loads(ask("rows?start=2")[1])["rows"]] == [HOSTILE]
    assert ask("scene/1")[0] == 200
    assert json.loads(ask("find?id=s1")[1]) == {"number": 1}


def refused(answer: tuple[int, str, http.client.HTTPResponse], status: int) -> None:
    """A short answer with a status, which repeats nothing."""
    assert answer[0] == status
    assert answer[1] == f"{http.client.responses[status]}\n"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "example.org"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.example.org"},
        {"Host": ""},
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_other_hosts_and_origins_are_refused(ask: Ask, headers: dict[str, str]) -> None:
    refused(ask(headers=headers), 403)
    refused(ask("scene/0", headers=headers), 403)


def test_the_page_itself_and_localhost_are_answered(ask: Ask, server: PageServer) -> None:
    own = f"http://127.0.0.1:{server.server_port}"
    assert ask("scene/0", headers={"Origin": own})[0] == 200
    assert ask(headers={"Host": f"localhost:{server.server_port}"})[0] == 200


def test_wrong_and_missing_tokens_are_refused(ask: Ask, server: PageServer) -> None:
    wrong = server.token[:-1] + ("a" if server.token[-1] != "a" else "b")
    for token in (wrong, server.token[:-1], server.token + "x", "", "%C3%A9", server.token.upper()):
        for part in ("", "rows", "scene/0"):
            refused(ask(f"/{token}/{part}"), 403)
    for address in ("/", "/scene/0", f"/?token={server.token}", "/favicon.ico"):
        refused(ask(address), 403)


@pytest.mark.parametrize(
    "part",
    [
        "../secret.txt",
        "../../etc/passwd",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "scene/../secret.txt",
        "scene/..%2f..%2fsecret.txt",
        "secret.txt",
        "val/00000.arrow",
        "val/",
        "scene/",
        "scene/-1",
        "scene/3",
        "scene/999999999999",
        "scene/" + "9" * 200,
        "scene/0/",
        "scene/0x1",
        "scene/%D9%A1",
        "rows?column=7",
        "rows/",
    ],
)
def test_only_parts_of_the_page_exist(ask: Ask, part: str) -> None:
    refused(ask(part), 404)


@pytest.mark.parametrize("query", ["start=-1", "start=x", "part=2", "&".join("abcdefghijklmno")])
def test_values_of_the_list_are_checked(ask: Ask, query: str) -> None:
    refused(ask(f"rows?{query}"), 400)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "MOON"])
def test_other_methods_are_refused(ask: Ask, method: str) -> None:
    status, text, _ = ask(method=method)
    assert status == 405
    assert text == ("" if method == "HEAD" else "Method Not Allowed\n")


def test_large_requests_are_refused(ask: Ask) -> None:
    refused(ask("rows?search=" + "x" * MAX_TARGET), 414)
    refused(ask("x" * 70_000), 414)
    refused(ask(headers={"Content-Length": "1000000000000"}), 413)
    refused(ask(headers={"Transfer-Encoding": "chunked"}), 413)
    refused(ask(headers={f"X-{number}": "x" for number in range(200)}), 431)
    refused(ask(headers={"X": "x" * 70_000}), 431)


def test_broken_requests_do_not_end_the_server(ask: Ask, server: PageServer) -> None:
    for content in (b"\r\n\r\n", b"\0\xff\n\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
            assert len(connection.recv(1000)) < 1000
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        host = f"Host: 127.0.0.1:{server.server_port}".encode()
        connection.sendall(b"GET /\xe9\xff/scene/0 HTTP/1.0\r\n" + host + b"\r\n\r\n")
        assert b" 403 " in connection.recv(100)
    refused(ask("http://example.org/"), 404)
    assert ask()[0] == 200


def test_a_used_port_is_an_error(server: PageServer) -> None:
    with pytest.raises(TrajformerError, match=f"port {server.server_port}: Address already in use"):
        PageServer(server.page, server.server_port)


def test_the_browser_opens_scenes_with_forecasts(view: View, server: PageServer) -> None:
    view.server = server.address
    view.visit(server.address)
    assert view.text("#count") == "3 scenes"
    assert view.text("#page-label") == "1–3"
    assert view.text("#scene-title") == "s0"
    assert view.page.locator("#columns button:disabled").count() == 2  # of the model
    view.page.click("#scenes tr >> nth=1")
    view.wait("#scene-title", "s1")
    assert view.texts(".file-name") == ["A  file", "B  constant velocity"]
    assert view.page.locator("#chart path").count() == 2
    view.wait("#scenes tr.current td:nth-child(3)", r"[0-9]\.[0-9]")  # the error of the model
    view.page.click("[data-column=fde0]")
    view.press("n")
    view.page.fill("#search", "IMG")
    view.page.locator("#scenes tr").nth(1).wait_for(state="detached")
    view.page.click("#scenes tr")
    view.wait("#scene-title", "<script>")
    view.page.goto(f"{server.address}#s1/AV")
    view.wait(".agent-id", "AV")
    assert view.page.locator("img").count() == 0
    assert view.page.title().startswith("<script>")


def test_the_page_says_that_the_program_has_ended(view: View, server: PageServer) -> None:
    view.server = server.address
    view.visit(server.address)
    view.page.route("**/scene/1", lambda route: route.abort())
    view.press("n")
    view.wait("#notice", "has ended: start it again")
    assert view.text("#scene-title") == "s0"
    assert any("ERR_FAILED" in message for message in view.messages)
    view.messages.clear()


def test_the_command_ends_by_ctrl_c(tmp_path: Path) -> None:
    scene = replace(make_scene(), scene_id="only")
    write_shard(shard_path(tmp_path, "val", 0), [scene], ShardInfo("synthetic", "val"))
    words = [sys.executable, "-m", "trajformer.cli", "view", str(tmp_path)]
    # Processes in the background of a shell ignore Ctrl-C, which their children inherit.
    restore = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, env=environment(), stdout=pipe, text=True, preexec_fn=restore
    ) as process:
        assert process.stdout is not None
        address, note = process.stdout.readline().split(maxsplit=1)
        assert note == "(1 scene; Ctrl-C ends)\n"
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        connection.request("GET", f"{urlsplit(address).path}rows")
        assert json.load(connection.getresponse())["rows"][0]["id"] == "only"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "\ntrajformer view: ended\n"
        assert process.wait() == 0
