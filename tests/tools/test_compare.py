"""Comparing models: rows, lengths, trainings that end, fail, stop and go on, scores and costs that are kept, tables, pictures."""

from __future__ import annotations

import json
import signal
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch
from support.scenes import make_scene
from test_cli import run

from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.scenes.scene import AgentRole
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import compare_models  # noqa: E402 - tools are no package
import compare_rows  # noqa: E402
import compare_runs  # noqa: E402
import compare_scores  # noqa: E402
import compare_table  # noqa: E402

RECIPE = """
model:
  mmtransformer:
    num_future: 12
    block: {width: 16, heads: 2, feedforward: 16, dropout: 0.1}
    motion_layers: [1, 1]
    map_layers: [1, 1]
    social_layers: [1, 2]
    map_width: 8
    max_polylines: 12
    max_neighbors: 4
data: {batch_size: 4, batch: {max_agents: 8, polyline_points: 4, targets: %s}}
"""
TABLE = """
- name: Motion alone
  config: focal.yaml
  arguments: {model.mmtransformer.map_layers: null, model.mmtransformer.social_layers: null}
- {name: refused, config: focal.yaml, arguments: {model.mmtransformer.block.hats: 3}}
"""
CVAE = """
samples: 3
latent: 2
block: {width: 8, heads: 2, feedforward: 8, dropout: 0.0, norm_first: false, own: true}
layers: [1, 1, 1]
hidden: [8]
steps_per_token: 4
"""
STAGES = """
- {name: Spread, config: second.yaml, after: Drawn}
- {name: Drawn, config: first.yaml}
"""
# A training of the name of its folder: `fails` says why, `waits` is there until it is told to stop.
STUB = """
import pathlib, signal, sys, time
words = sys.argv[1:]
out = pathlib.Path(next(w for w in words if w.startswith("--out=")).removeprefix("--out="))
(out / "words.txt").write_text(" ".join(words))
if "fails" in str(out):
    sys.exit("traceback\\ntrajformer train: no such thing\\n\\n")
if "waits" in str(out) and "--resume" not in words:
    def stop(*_):
        (out / "last.ckpt").touch()
        sys.exit(130)
    signal.signal(signal.SIGTERM, stop)
    (out / "ready").touch()
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of nine and three scenes, recipes, a table and a Markdown file."""
    root = tmp_path_factory.mktemp("compare")
    for split, seeds in (("train", range(9)), ("val", range(20, 23))):
        scenes = [make_scene(6, seed=seed) for seed in seeds]
        write_shard(shard_path(root / "store", split, 0), scenes, ShardInfo("synthetic", split))
    for targets in ("focal", "all"):
        (root / f"{targets}.yaml").write_text(RECIPE % targets)
    (root / "tiny.yaml").write_text(TABLE)
    (root / "results.md").write_text("# A\n<!-- table: tiny -->\nold\n<!-- end -->\nB\n<!-- end -->\n")
    return root


def compare(folder: Path, *words: object) -> int:
    """The exit code of the tool with a table, files and lengths; `words` follow."""
    files = [f"--{name}={folder / file}" for name, file in (("json", "r.json"), ("markdown", "results.md"), ("plot", "p.png"))]
    length = ["--futures=8", "--seeds=3", "--jobs=1", "--repeats=1"]
    where = [f"--store={folder / 'store'}", f"--out={folder / 'out'}", f"--table={folder / 'tiny.yaml'}"]
    return compare_models.main([*where, *length, *files, *map(str, words)])


@pytest.fixture(scope="module")
def first(folder: Path) -> dict[str, Any]:
    """What the first comparison says: a row is trained, the other one cannot be."""
    assert compare(folder) == 1
    return json.loads((folder / "r.json").read_text())


def test_a_row_is_trained_scored_and_measured_and_another_is_listed_as_failed(folder: Path, first: dict[str, Any]) -> None:
    row, refused = first["rows"]
    assert [row["name"], row["failed"], refused["seeds"]] == ["Motion alone", [], {}]
    assert len(refused["failed"]) == 1 and "hats" in refused["failed"][0]
    done = row["seeds"]["3"]["run"]
    assert (done["epochs"], done["futures"]) == (1, 9) and 0 < done["minutes"] < 30
    assert row["cost"]["parameters"] > 1000
    for name in ("latency_1_ms", "latency_32_ms", "step_32_ms", "load_before"):
        assert row["cost"][name] >= 0, name
    assert row["cost"]["forward_mb"] >= row["cost"]["base_mb"] > 50 and row["cost"]["step_mb"] > row["cost"]["step_base_mb"]
    text = (folder / "results.md").read_text()
    assert text.startswith("# A\n<!-- table: tiny -->\nAccuracy") and text.endswith("\n<!-- end -->\nB\n<!-- end -->\n")
    assert "old" not in text and "| Motion alone |" in text and "- refused: " in text
    assert f"{row['mean']['minFDE_6']:.3f}".removeprefix("0") in text
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_stage_is_trained_for_the_first_one_of_its_seed(folder: Path) -> None:
    data = "data: {batch_size: 4, batch: {max_agents: 4, targets: focal}}\n"
    first, second = "model:\n  agentformer:", "model:\n  agentformer_sampler:\n    hidden: [8, 8]\n    cvae:"
    (folder / "first.yaml").write_text(first + indent(CVAE, "    ") + data)
    (folder / "second.yaml").write_text(second + indent(CVAE, "      ") + data)
    (folder / "stages.yaml").write_text(STAGES)
    (folder / "stages.md").write_text("<!-- table: stages -->\n<!-- end -->\n")
    words = (
        f"--table={folder / 'stages.yaml'}",
        f"--markdown={folder / 'stages.md'}",
        f"--json={folder / 's.json'}",
        "--seeds",
        4,
        5,
    )
    assert compare(folder, *words) == 0
    spread, drawn = json.loads((folder / "s.json").read_text())["rows"]
    assert set(spread["seeds"]) == set(drawn["seeds"]) == {"4", "5"} and not spread["failed"] and spread["cost"]["parameters"] > 0
    for seed in (4, 5):
        ours, first = (
            torch.load(folder / "out" / name / f"seed{seed}" / "best.ckpt", weights_only=True) for name in ("spread", "drawn")
        )
        adopted = {key.removeprefix("model.cvae."): value for key, value in ours["state_dict"].items() if "cvae." in key}
        assert adopted and all(torch.equal(value, first["state_dict"][f"model.{key}"]) for key, value in adopted.items())
    assert (
        compare(folder, *words, "--finished", f"--out={folder / 'out' / '..' / 'out'}") == 0
    )  # it is the same run from elsewhere


def test_the_figures_are_those_of_evaluate(folder: Path, first: dict[str, Any]) -> None:
    best, store = folder / "out" / "motion_alone" / "seed3" / "best.ckpt", folder / "store"
    assert run("evaluate", "--checkpoint", best, "--store", store, "--json", folder / "e.json") == 0
    scores = json.loads((folder / "e.json").read_text())
    row = first["rows"][0]
    assert row["seeds"]["3"]["scores"] == pytest.approx(scores, rel=1e-6) and len(scores) == 9
    assert {name: row["mean"][name] for name in scores} == pytest.approx(scores, rel=1e-6)


def test_what_focal_agents_do_divides_their_errors(folder: Path, first: dict[str, Any]) -> None:
    kinds = first["rows"][0]["seeds"]["3"]["manoeuvres"]
    scenes = SceneStore(folder / "store", "val")
    expected = dict.fromkeys(("straight", "turn", "stop", "lane change"), 0)
    for scene in scenes:
        focal, now = scene.agent_role == AgentRole.FOCAL, scene.num_history
        pose = torch.tensor([[[*scene.position[focal, now - 1][0].tolist(), scene.heading[focal, now - 1].item()]]])
        target, valid = torch.from_numpy(scene.position[focal, now:])[None], torch.from_numpy(scene.valid[focal, now:])[None]
        expected[Manoeuvre(int(manoeuvres(target, valid, pose, scene.period_s)[0])).label] += 1
    assert {kind: part["count"] for kind, part in kinds.items()} == expected
    table = (folder / "out" / "motion_alone" / "seed3" / "agents.csv").read_text().splitlines()
    errors = [float(line.split(",")[table[0].split(",").index("minFDE_6")]) for line in table[1:] if ",1000," in line]
    assert len(errors) == 3  # of nine scored agents
    total = sum(part["count"] * part["minFDE_6"] for part in kinds.values() if part["count"])
    assert total == pytest.approx(sum(errors), abs=1e-5)


def test_figures_by_manoeuvre_are_means_over_focal_agents(tmp_path: Path) -> None:
    scorer, (straight, turn, stop, _) = compare_scores.Scorer(tmp_path), Manoeuvre
    scorer.did["val"] = {("a", "1"): turn, ("b", "1"): turn, ("c", "1"): stop, ("d", "1"): straight}
    lines = ["scenario_id,track_id,minADE_6,minFDE_6,MR_6", "a,1,9,1.0,0.0", "a,2,9,50,1", "b,1,9,4.0,1.0", "d,1,9,0.5,0.0"]
    (tmp_path / "agents.csv").write_text("\n".join(lines))
    assert scorer._by_manoeuvre(tmp_path / "agents.csv", "val") == {
        "straight": {"count": 1, "minFDE_6": 0.5, "MR_6": 0.0},
        "turn": {"count": 2, "minFDE_6": 2.5, "MR_6": 0.5},
        "stop": {"count": 0},
        "lane change": {"count": 0},
    }


def test_a_second_time_nothing_is_trained_scored_or_measured(
    folder: Path, first: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for where, name in ((compare_runs, "Training"), (compare_scores, "load_predictor"), (compare_scores.compare_cost, "measure")):
        monkeypatch.setattr(where, name, lambda *_: pytest.fail("is done again"))
    (folder / "results.md").write_text("<!-- table: tiny -->\n<!-- end -->")
    assert compare(folder) == 1
    assert json.loads((folder / "r.json").read_text())["rows"] == first["rows"]
    assert "Motion alone" in (folder / "results.md").read_text()


def test_finished_has_the_figures_of_what_is_trained_and_trains_nothing(
    folder: Path, first: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_runs, "Training", lambda *_: pytest.fail("is trained"))
    assert compare(folder, "--seeds", 3, 4, "--finished", f"--json={tmp_path / 'r.json'}") == 1
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [list(row["seeds"]) for row in rows] == [["3"], []] and rows[0] == first["rows"][0]


def test_a_folder_of_another_length_is_not_taken_for_this_one(folder: Path, first: dict[str, Any], tmp_path: Path) -> None:
    assert compare(folder, "--futures=30", f"--json={tmp_path / 'r.json'}") == 1
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert "another recipe, length or store" in rows[0]["failed"][0] and rows[0]["seeds"] == {}


def test_a_model_without_training_has_figures_too(folder: Path) -> None:
    kept = compare_scores.Scorer(folder / "store").scores("constant_velocity", folder / "cv", "val")
    assert run("evaluate", "--model", "constant_velocity", "--store", folder / "store", "--json", folder / "cv.json") == 0
    assert kept["scores"] == pytest.approx(json.loads((folder / "cv.json").read_text()), rel=1e-6)


def plan(folder: Path, name: str, targets: str = "focal", futures: int = 100, seed: int = 0) -> compare_rows.Plan:
    """A training of a recipe."""
    row = compare_rows.Row(name, ("--config", str(folder / f"{targets}.yaml")))
    return compare_rows.plan(row, seed, folder / "store", folder / "plans", futures)


def test_every_model_learns_from_as_many_futures(folder: Path) -> None:
    scenes = SceneStore(folder / "store", "train")
    seen = [scene.valid[:, scene.num_history - 1] & scene.valid[:, scene.num_history :].any(1) for scene in scenes]
    each = {"focal": 9, "all": int(sum(agents.sum() for agents in seen))}
    assert each["all"] > 3 * each["focal"]
    for targets, once in each.items():
        made = plan(folder, targets, targets, futures=900)
        assert made.recipe.trainer.epochs == round(900 / once) and made.futures == made.recipe.trainer.epochs * once
        assert abs(made.futures - 900) <= once / 2
        every = made.recipe.trainer.validate_every
        assert 6 <= made.recipe.trainer.epochs / every <= 10
        assert (made.recipe.trainer.threads, made.recipe.seed, made.recipe.data.train) == (1, 0, str(folder / "store"))
    assert plan(folder, "short", futures=1).recipe.trainer.epochs == 1
    (folder / "own.yaml").write_text("- {name: own, config: all.yaml, epochs: 7}")
    [row] = compare_rows.read_table(folder / "own.yaml")
    own = compare_rows.plan(row, 0, folder / "store", folder / "plans", 1)
    assert own.recipe.trainer.epochs == 7 and own.futures == 7 * each["all"]
    taught = compare_rows.recipe_of(compare_rows.Row("taught", ("--config", str(folder / "focal.yaml"), "--data.learn_from=all")))
    data = replace(taught.data, train=str(folder / "store"))
    assert (data.batch.targets, compare_rows.futures_in_epoch(data)) == ("focal", each["all"])
    assert plan(folder, "a").digest == plan(folder, "a").digest != plan(folder, "a", seed=1).digest


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in place of `trajformer`."""
    monkeypatch.setattr(compare_runs, "COMMAND", [sys.executable, "-c", STUB])


def test_a_training_that_fails_leaves_the_others(folder: Path, stub: None) -> None:
    plans = [plan(folder, name) for name in ("one", "fails", "two")]
    failed = compare_runs.train_all(plans, 2)
    assert failed == {plans[1]: "trajformer train: no such thing"}
    assert [one.record()["done"] for one in plans] == [True, False, True]
    words = (plans[0].folder / "words.txt").read_text().split()
    assert words[0] == "train" and "--trainer.epochs=11" in words and "--resume" not in words


def test_what_is_stopped_ends_its_processes_and_goes_on(folder: Path, stub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    one, sleep = plan(folder, "waits"), compare_runs.time.sleep

    def wait(seconds: float) -> None:
        sleep(0.02)
        if (one.folder / "ready").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(compare_runs.time, "sleep", wait)
        compare_runs.train_all([one], 1)
    assert (one.folder / "last.ckpt").exists()  # it was told, and has ended by itself
    before = one.record()
    assert not before["done"] and before["minutes"] > 0
    assert compare_runs.train_all([one], 1) == {}
    assert "--resume" in (one.folder / "words.txt").read_text()
    assert one.record()["done"] and one.record()["minutes"] > before["minutes"]


def test_a_process_that_does_not_stop_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    monkeypatch.setattr(compare_runs, "COMMAND", [sys.executable, "-c", deaf])
    monkeypatch.setattr(compare_runs, "_GRACE_S", 0.2)
    training = compare_runs.Training(plan(folder, "deaf"))
    while training.last_line() != "deaf":
        compare_runs.time.sleep(0.02)
    compare_runs._stop([training])
    assert training.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", ["models", "ablations", "wayformer", "wayformer_six", "long"])
def test_the_tables_that_come_along_build(name: str) -> None:
    rows = compare_rows.read_table(ROOT / "configs" / "compare" / f"{name}.yaml")
    recipes = [compare_rows.recipe_of(row) for row in rows]
    for recipe in recipes:
        recipe.build_model()
    assert len({repr(recipe.model) for recipe in recipes}) == len(rows)


def test_recipes_of_other_tasks_are_left_out() -> None:
    heads = sorted((ROOT / "configs" / "heads").glob("*.yaml"))
    ours = ROOT / "configs" / "gatformer_argoverse1.yaml"
    assert [row.name for row in compare_rows.rows_of_configs([*heads, ours])] == ["gatformer"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: b: c", "mapping values"),
        ("{}", "expected a list of rows"),
        ("- {config: a.yaml}", "row 1: .*expected a list of rows"),
        ("- {name: a, model: nothing}", "row 1: model: 'nothing', known without training: constant_velocity"),
        ("- {name: a, config: a.yaml, arguments: [1]}", "row 1"),
        ("- {name: a, config: a.yaml, argument: {}}", "row 1"),
        ("- {name: a, config: a.yaml, epochs: many}", "row 1"),
        ("- {name: a, config: a.yaml, after: [b]}", "row 1"),
        ("- {name: a, config: a.yaml, after: b}", "row a: after: 'b' is no row that is trained by itself"),
        ("- {name: a, config: a.yaml, after: b}\n- {name: b, config: a.yaml, after: a}", "row a: after: 'b' is no row"),
        ("- {name: a b, config: a.yaml}\n- {name: A-b, config: a.yaml}", r"\['a b', 'A-b'\]: .* one folder, 'a_b'"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(TrajformerError, match=expected):
        compare_rows.read_table(tmp_path / "t.yaml")


def test_complaints_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[Callable[[], int], str]] = [
        (lambda: compare(folder, f"--store={tmp_path / 'none'}"), "no such store"),
        (lambda: compare(folder, f"--markdown={folder / 'focal.yaml'}"), "has no '<!-- table: tiny -->'"),
        (lambda: compare(folder, f"--table={tmp_path / 'none.yaml'}"), "none.yaml"),
    ]
    for call, expected in cases:
        assert call() == 1
        error = capsys.readouterr().err
        assert error.startswith("compare_models: ") and expected in error and error.count("\n") == 1


def row_of(name: str, values: list[float], **cost: float) -> dict[str, Any]:
    """A row with a minFDE_6 for each seed."""
    kinds = {"turn": {"count": 4, "minFDE_6": 2.5, "MR_6": 0.5}, "stop": {"count": 0}}
    figures = [{"scores": {"num_agents": 9, "minFDE_6": value}, "manoeuvres": kinds} for value in values]
    seeds = {str(i): part | {"run": {"minutes": 3.0 + i}} for i, part in enumerate(figures)}
    return {"name": name, "seeds": seeds, "cost": cost, "failed": []} | compare_table.sum_up(seeds)


def test_tables_have_mean_and_deviation_and_no_empty_column() -> None:
    rows = [row_of("a", [1.0, 1.5, 1.7], parameters=12345, latency_1_ms=12.34), row_of("b", [0.25]), row_of("none", [])]
    made = {table.title.split(" ")[0]: table for table in compare_table.tables(rows)}
    assert list(made) == ["Accuracy", "By", "Cost"]  # no worlds
    accuracy = {row[0]: dict(zip(made["Accuracy"].header, row, strict=True)) for row in made["Accuracy"].rows}
    spread = statistics.stdev([1.0, 1.5, 1.7])
    assert accuracy["a"]["minFDE6"] == f"1.400 ({spread:.3f})".replace("(0.", "(.")
    assert made["Accuracy"].header == ["model", "minFDE6"]  # nobody has another figure
    assert (accuracy["b"]["minFDE6"], accuracy["none"]["minFDE6"]) == (".250", "-")
    assert "turn 4 agents" in made["By"].title and made["By"].header == ["model", "minFDE6 turn", "MR6 turn"]
    cost = dict(zip(made["Cost"].header, made["Cost"].rows[0], strict=True))
    assert (cost["parameters"], cost["ms, batch 1"], cost["minutes"]) == ("12,345", "12.3", "4.0 (1.0)")
    text = made["Cost"].markdown().splitlines()
    assert text[2].count("|") == text[3].count("|") == text[4].count("|") == 5
    assert len({len(line) for line in made["Accuracy"].plain().splitlines()[1:3]}) == 1


def test_the_picture_names_every_model_and_none_covers_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    names = ["mmTransformer", "Wayformer", "Gatformer", "lane-set transformer"]
    rows = [row_of(name, [1.4 + 0.01 * i, 1.5], parameters=9, latency_1_ms=5.0 + i / 9) for i, name in enumerate(names)]
    rows.append(row_of("constant velocity", [3.5], parameters=0, latency_1_ms=0.3))
    saved: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: saved.append(self) or save(self, *a, **k))
    compare_table.plot(rows, tmp_path / "p.png")
    axes = saved[0].axes[0]
    assert axes.get_xscale() == "log" and [text.get_text() for text in axes.texts] == names
    assert axes.get_title("left") == "not shown: constant velocity: 3.50 m, 0.3 ms"
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert (tmp_path / "p.png").stat().st_size > 1000
