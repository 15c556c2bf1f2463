"""Documentation: links resolve, named functions exist, metrics agree, and the guide runs."""

import ast
import itertools
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from support.cli import run

from data_prep.readers.table.reader import Table
from data_prep.readers.table.table_file import NUMBERS, TEXT
from trajformer.scenes.lane_json import read_lanes
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, PolylineKind
from trajformer.scenes.store import SceneStore
from trajformer.scenes.vector_map import distance_to_segments

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        path, _, anchor = "".join(link).partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(target), f"{path} has no heading #{anchor}"


def test_the_guide_of_data_has_at_most_15_lines_for_each_data_set() -> None:
    table, _, _ = (ROOT / "docs/data.md").read_text(encoding="utf-8").partition("## Commands")
    sections = re.split(r"^### ", table, flags=re.MULTILINE)[1:]
    assert len(sections) >= 9
    for section in sections:
        title, *lines = section.splitlines()
        assert sum(bool(line.strip()) for line in lines) <= 15, title


def defined_names(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module or a class defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return {statement.name}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()


def test_the_walks_name_existing_functions() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", text)
    assert len(named) >= 15
    for name, path in named:
        nodes: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        for part in name.split("."):
            matching = [node for node in nodes if part in defined_names(node)]
            assert matching, f"{path} has no {name}"
            nodes = getattr(matching[0], "body", [])


@pytest.mark.parametrize("title", ["From a raw file to a picture", "From `--config` to the model"])
def test_a_walk_visits_each_package_once(title: str) -> None:
    walk = section((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), title)
    steps = re.findall(r"^\d+\. (\w+): (.*(?:\n .*)*)", walk, re.MULTILINE)
    assert len(steps) >= 7
    visited = [package for package, _ in itertools.groupby(package for package, _ in steps)]
    assert len(visited) == len(set(visited))
    for package, step in steps:
        folder = package if package == "data_prep" else f"trajformer/{package}"
        files = re.findall(r"\]\(\.\./([\w/]+\.py)\)", step)
        assert files
        assert all(file.startswith(f"{folder}/") for file in files), step


GUIDE = (ROOT / "docs" / "your-data.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def run_blocks(text: str) -> list[str]:
    """Run the fenced python and sh blocks of a text in order, here; returns the commands."""
    commands = []
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            exec(compile(body, "example", "exec"), {"__name__": "example"})
        elif language == "sh":
            for line in body.splitlines():
                program, *words = shlex.split(line)
                assert program == "trajformer", line
                assert run(*words) == 0, line
                commands.append(words[0])
    return commands


def test_the_example_of_another_program_runs(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("synthesize", "RAW", "--scenes", 10, "--seed", 1) == 0
    page = (ROOT / "docs" / "forecasts.md").read_text(encoding="utf-8")
    example = section(page, "Example: a program without trajformer")
    capsys.readouterr()
    assert run_blocks(example) == ["preprocess", "score", "report", "view"]
    text = capsys.readouterr().out
    assert "no usable forecast" not in text
    assert "by manoeuvre" in text
    assert all(name in Path("report.html").read_text() for name in ("minFDE6", "forecasts.csv"))
    assert re.search(r"^view\.html: \d+ scenes?, ", text, re.MULTILINE)


def test_the_example_of_the_guide_runs(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_blocks(GUIDE) == ["preprocess", "store", "evaluate", "predict", "plot"]
    text = capsys.readouterr().out
    assert "val: 1 scenes" in text
    assert "0 skipped" in text
    assert "forecasts of 3 agents in 1 scenes" in text
    assert Path("pictures/crossing.png").read_bytes().startswith(b"\x89PNG")
    assert set(pd.read_parquet("forecasts.parquet").track_id) == {"turning", "oncoming", "walker"}

    [scene] = SceneStore("mystore", "val")
    oncoming, turning, walker = scene.agent_kind.tolist()
    assert oncoming == turning == AgentKind.VEHICLE
    assert walker == AgentKind.PEDESTRIAN
    assert scene.agent_role.tolist() == [AgentRole.SCORED] * 3
    assert (scene.num_history, scene.num_steps, scene.num_polylines) == (50, 110, 7)

    lanes = read_lanes(Path("mydata/lanes.json"))
    assert (lanes.edge_kind == EdgeKind.SUCCESSOR).sum() == 3
    assert (lanes.edge_kind == EdgeKind.LEFT).sum() == 2
    assert lanes.polyline_kind.tolist()[5:] == [PolylineKind.CROSSWALK, PolylineKind.DRIVABLE_AREA]
    start, end, owner = lanes.segments()
    is_lane = owner < 5
    cars = (scene.position[:2] + scene.origin).reshape(-1, 2)
    distance = distance_to_segments(cars[:, None], start[is_lane], end[is_lane])
    assert distance.min(1).max() < 0.1, "cars keep to the lanes"


def test_pages_that_everybody_reads_stay_short() -> None:
    assert len(GUIDE.split()) < 1500
    assert len((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").split()) < 900


def test_the_guide_names_every_column_word_and_option() -> None:
    table = section(GUIDE, "The table")
    kinds = [kind.name.lower() for kind in AgentKind]
    roles = [role.name.lower() for role in AgentRole]
    for name in (*TEXT, *NUMBERS, *kinds, *roles):
        assert f"`{name}`" in table, name
    rest = section(GUIDE, "Time, windows and scenes") + section(GUIDE, "Lanes")
    rest = rest.replace("\n", " ")
    for field in fields(Table):
        option = f"--{field.name.replace('_', '-')}"
        default = str(field.default).removesuffix(".0")
        assert re.search(rf"`{option}`[^(]*\({default}\)", rest), option


def cells(page: str, row: str) -> list[str]:
    """The cells after the first one in the only row of a page's tables that starts with a text."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    matching = [line for line in lines if line.startswith(f"| {row}")]
    assert len(matching) == 1, f"{page}: {len(matching)} rows start with {row}"
    return [cell.strip() for cell in matching[0].strip("|").split("|")[1:]]


def test_the_metrics_of_the_included_weights_are_those_of_the_results() -> None:
    """`trajformer pretrained` prints the metrics of the results."""
    cards = (ROOT / "trajformer/recipes/weights/cards.yaml").read_text(encoding="utf-8")
    printed = yaml.safe_load(cards)["se2former_argoverse1"]["figures"]
    row = cells("docs/results/argoverse1.md", "**SE2Former, included weights**")
    assert "/".join(row[:3]) in printed
    assert f"minFDE1 {row[3]}" in printed


def test_the_readme_has_the_metrics_of_the_results() -> None:
    recorded = cells("docs/results/argoverse1.md", "**SE2Former**, included weights")
    shown = cells("README.md", "**Argoverse 1**")[0]
    assert " / ".join(recorded[:3]) in shown
    assert f"; {float(recorded[3]):.2f}" in shown
