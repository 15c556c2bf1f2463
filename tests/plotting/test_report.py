"""The report: its tables are the record, and names of files and scenes stay text."""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import run
from support.pictures import fans
from support.scenes import make_scene

from trajformer.cli.report import usual_groups, usual_horizons
from trajformer.evaluation import breakdown
from trajformer.evaluation.bootstrap import Estimate
from trajformer.evaluation.forecast_file import read_modes, write_forecasts
from trajformer.evaluation.reliability import reliability_diagram
from trajformer.evaluation.score import score
from trajformer.evaluation.scoring import Rules, Scoring
from trajformer.evaluation.tables import Cell, Table, cell_text
from trajformer.plotting.report.pictures import scene_picture
from trajformer.scenes.scene import METRES, PIXELS, Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore

HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'<!--\"'&amp;"
RULES = Rules(horizons_s=(0.5, 1.0), details=("map", "dynamics", "overlap", "calibration"))


def write_files(folder: Path, scenes: list[Scene]) -> None:
    """A store, its forecasts a.parquet, and b.parquet with shifts that grow with the scene."""
    write_shard(shard_path(folder / "store", "val", 0), scenes, ShardInfo("synthetic", "val"))
    forecasts = {"a": [], "b": []}
    for number, scene in enumerate(scenes):
        for one in fans(scene):
            forecasts["a"].append(one)
            shifted = one.position + np.array([0.4 * number - 1.0, 0.0])
            forecasts["b"].append(replace(one, position=shifted))
    for name, tracks in forecasts.items():
        write_forecasts(folder / f"{name}.parquet", tracks, DataSpec.of(scenes[0]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven scenes and two files with a report.html."""
    folder = tmp_path_factory.mktemp("report")
    cities = ("MIA", "PIT")
    scenes = []
    for number in range(7):
        scene = make_scene(seed=number, scene_id=f"s{number}")
        scenes.append(replace(scene, city=cities[number % 2]))
    write_files(folder, scenes)
    assert run(*words(folder), "--horizons", "0.5,1") == 0
    return folder


def words(folder: Path) -> tuple[object, ...]:
    files = (folder / "a.parquet", folder / "b.parquet")
    return ("report", *files, "--store", folder / "store", "--out", folder / "report.html")


@pytest.fixture(scope="module")
def scorings(folder: Path) -> list[Scoring]:
    """The records of the two files."""
    store = SceneStore(folder / "store", "val")
    records = []
    for name in ("a", "b"):
        modes = read_modes(folder / f"{name}.parquet")
        records.append(score(modes, store, rules=RULES, label=name))
    return records


class Page(HTMLParser):
    """The tables of a page by caption, each a list of rows of texts, and all element names."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self._rows: list[list[str]] = []
        self._caption: list[str] = []
        self._is_caption = False
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(name for name, _ in attributes)
        if tag == "table":
            self._rows, self._caption = [], []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        self._is_caption = tag == "caption"

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.tables["".join(self._caption)] = self._rows
            self._rows = []

    def handle_data(self, data: str) -> None:
        if self._is_caption:
            self._caption.append(data)
        elif self._rows and self._rows[-1]:
            self._rows[-1][-1] += data


def shown(cell: Cell) -> str:
    """The text of a cell of the page: the interval is not in brackets."""
    return re.sub(r"[()]", "", cell_text(cell)).strip()


def texts_of(table: Table) -> list[list[str]]:
    """The rows of a table without its first column, which is one cell for several rows."""
    return [[shown(cell) for cell in row[1:]] for row in table.rows]


def shown_rows(page: Page, title: str, columns: int) -> list[list[str]]:
    """The last cells of the rows of a table of the page, without its head."""
    rows = page.tables[title][1:]
    return [[text.strip() for text in row[-columns:]] for row in rows]


def test_the_tables_are_those_of_the_record(folder: Path, scorings: list[Scoring]) -> None:
    page = Page((folder / "report.html").read_text("utf-8"))
    tables = [
        breakdown.by_horizon(scorings),
        breakdown.by_group(scorings, "type"),
        breakdown.by_group(scorings, "city"),
        breakdown.details_by_group(scorings, "speed"),
        breakdown.paired(scorings[1], scorings[0]),
        breakdown.paired(scorings[1], scorings[0], "manoeuvre"),
        breakdown.paired_details(scorings[1], scorings[0]),
        reliability_diagram(scorings),
    ]
    for table in tables:
        expected = texts_of(table)
        assert shown_rows(page, table.title, len(expected[0])) == expected, table.name


def test_metrics_are_in_a_row_each_with_their_interval(
    folder: Path, scorings: list[Scoring]
) -> None:
    html = (folder / "report.html").read_text("utf-8")
    first, second = breakdown.overall(scorings, ["minFDE6"]).rows
    estimates = [first[-1], second[-1]]
    [row] = re.findall(r'<tr><th scope="row" class="text">minFDE6</th>(.*?)</tr>', html)
    assert row.count("<td>") == 2
    for estimate in estimates:
        assert isinstance(estimate, Estimate)
        assert f"<td>{estimate.mean:.3f} " in row
        assert f">{estimate.low:.3f} to {estimate.high:.3f}<" in row
    gap = [row[-1] for row in reliability_diagram(scorings).rows if row[0] == "all"]
    [row] = re.findall(r'<tr><th scope="row" class="text">ECE</th>(.*?)</tr>', html)
    assert [f"<td>{one.mean:.3f} " in row for one in gap] == [True, True]


def test_scenes_are_shown_with_a_command_that_opens_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = (folder / "report.html").read_text("utf-8")
    assert html.count('class="scene"') == html.count("<figcaption>") >= 6
    titles = re.findall(r"<h3>([A-Z][a-z]+ (?:errors|gain|loss))", html)
    assert titles[:3] == ["Largest errors", "Median errors", "Smallest errors"]
    command = re.findall(r"<code>trajformer (.*?)</code>", html)[0]
    monkeypatch.chdir(tmp_path)
    assert run(*command.split()) == 0
    assert Path("view.html").is_file()


def test_the_policy_allows_one_style_and_no_script(folder: Path) -> None:
    html = (folder / "report.html").read_text("utf-8")
    (style,) = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    rules = [rule.strip() for rule in policy.split(";")]
    assert "default-src 'none'" in rules
    assert f"style-src 'sha256-{digest}'" in rules
    page = Page(html)
    assert page.names.isdisjoint({"script", "img", "iframe", "link", "object", "form"})
    assert "style" not in page.attributes
    assert not re.search(r"https?:|url\(|@import", html)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of scenes, agents, cities and forecasts with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    scenes = []
    for number in range(4):
        scene = make_scene(seed=number)
        ids = (f"{HOSTILE}{number}", "x" * 200, *scene.agent_id[2:])
        name = HOSTILE.replace("/", "") + str(number)
        scenes.append(replace(scene, scene_id=name, agent_id=ids, city=HOSTILE).validate())
    write_files(folder, scenes)
    unknown = replace(fans(scenes[0])[0], scene_id=f"{HOSTILE}\n\u202e", track_id="</title>")
    broken = replace(fans(scenes[1])[0], track_id="y" * 300)
    tracks = [one for scene in scenes for one in fans(scene)[1:]]
    write_forecasts(folder / "b.parquet", [*tracks, unknown, broken], DataSpec.of(scenes[0]))
    hostile = folder / "<script>alert(1)</script>".replace("/", "") / "c.parquet"
    hostile.parent.mkdir()
    (folder / "b.parquet").rename(hostile)
    files = (folder / "a.parquet", hostile)
    page = folder / "report.html"
    assert run("report", *files, "--store", folder / "store", "--out", page) == 0
    return page


def test_hostile_names_are_only_text(hostile_page: Path) -> None:
    html = hostile_page.read_text("utf-8")
    page = Page(html)
    assert page.names.isdisjoint({"script", "img"})
    assert {name for name in page.attributes if name.startswith("on")} == set()
    assert "\u202e" not in html
    assert "&lt;script&gt;" in html
    assert "forecasts are of scenes that are not in the split" in html
    assert "agents to score have no usable forecast" in html


def test_a_report_is_replaced_only_by_a_report(folder: Path, fails: Callable[..., str]) -> None:
    assert "exists; give another name" in fails(*words(folder))
    Path("page.html").write_text("<!DOCTYPE html><p>mine")
    other = (*words(folder)[:-1], "page.html", "--overwrite")
    assert "is not a html file that this command wrote" in fails(*other)
    files = [folder / "a.parquet"] * 2
    assert "give different files" in fails("report", *files, *words(folder)[3:-1], "new.html")


def test_horizons_are_round_and_few() -> None:
    def horizons(period_s: float, num_future: int) -> tuple[float, ...]:
        return usual_horizons(DataSpec(period_s=period_s, num_future=num_future))

    assert horizons(0.1, 30) == (0.5, 1.0, 1.5, 2.0, 2.5)
    assert horizons(0.5, 12) == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert horizons(0.4, 12) == (0.8, 1.6, 2.4, 3.2, 4.0)
    assert horizons(0.1, 1) == ()


def test_groups_depend_on_the_unit_and_the_number_of_cities() -> None:
    assert usual_groups(METRES, 20) == ["type", "manoeuvre", "speed", "city"]
    assert usual_groups(METRES, 21) == ["type", "manoeuvre", "speed"]
    assert usual_groups(PIXELS, 2) == ["type", "city"]


def test_a_picture_has_a_path_for_each_mode_and_recorded_future() -> None:
    scene = make_scene()
    forecasts = fans(scene)
    picture = scene_picture(scene, [forecasts, forecasts[:1]], "a scene")
    assert picture.count('class="file-0 mode"') == sum(len(one.probability) for one in forecasts)
    assert picture.count('class="file-1 mode"') == len(forecasts[0].probability)
    assert picture.count('class="truth"') == len(forecasts)
    assert "nan" not in picture
    ends = {}
    for unit in (METRES, PIXELS):
        picture = scene_picture(replace(make_scene(with_map=False), unit=unit), [forecasts], "a")
        ends[unit] = re.findall(r'cy="([\d.]+)" r="3" class="truth-end"', picture)
    assert len(ends[METRES]) == len(forecasts) > 1
    order = np.argsort(np.array(ends[METRES], float))
    assert np.argsort(np.array(ends[PIXELS], float)).tolist() == order[::-1].tolist()
    empty = scene_picture(make_scene(with_map=False, with_future=False), [[]], "no forecast")
    assert "mode" not in empty


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_browser_shows_it_without_messages_and_requests(
    browser: Any, hostile_page: Path, theme: str
) -> None:
    path = hostile_page
    messages: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": 400, "height": 700}, color_scheme=theme)
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append("a dialog"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert messages == []
    assert requests == [path.as_uri()]
    assert page.title() == "Forecasts of store, split val"
    assert page.locator("h1").count() == 1
    names = page.locator("nav a").all_inner_texts()
    assert names == page.locator("h2").all_inner_texts()
    # nothing but tables is wider than a narrow screen
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[theme]
    stroke = page.evaluate("getComputedStyle(document.querySelector('.scene .truth')).stroke")
    assert stroke == {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[theme]
    page.emulate_media(media="print")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    page.close()
