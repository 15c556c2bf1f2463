"""Comparisons: rows, trainings that fail, stop and resume, stored scores and costs, tables."""

import json
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from compare import eth_ucy, models, table, trainings
from support.cli import run
from support.scenes import make_scene
from support.training import recipe

from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.recipes.plain import to_plain
from trajformer.scenes.scene import AgentRole
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard

ROOT = Path(__file__).parents[2]
TABLE = """
- name: Motion alone
  config: focal.yaml
  arguments:
    trainer.epochs: 1
    model.mmtransformer.map_layers: null
    model.mmtransformer.social_layers: null
- {name: refused, config: focal.yaml, arguments: {model.mmtransformer.block.hats: 3}}
"""
CVAE = """
samples: 3
latent: 2
block: {width: 8, heads: 2, feedforward: 8, dropout: 0.0, norm_first: false, agent_aware: true}
layers: [1, 1, 1]
hidden: [8]
steps_per_token: 4
"""
STAGES = """
- {name: Second, config: second.yaml, after: First}
- {name: First, config: first.yaml}
"""
# A training process: in a folder named "fails" it fails, in "waits" it waits for SIGTERM.
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
    # Short sleeps: a signal just before a long one would be handled at its end.
    for _ in range(6000):
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of nine and three scenes, recipes, a table and a Markdown file."""
    root = tmp_path_factory.mktemp("compare")
    for split, seeds in (("train", range(9)), ("val", range(20, 23))):
        scenes = [make_scene(6, seed=seed) for seed in seeds]
        write_shard(shard_path(root / "store", split, 0), scenes, ShardInfo("synthetic", split))
    for targets in ("focal", "all"):
        batch = BatchConfig(polyline_points=4, targets=targets)
        config = recipe(root / "store", data={"batch_size": 4, "batch": batch})
        (root / f"{targets}.yaml").write_text(yaml.safe_dump(to_plain(config)))
    (root / "tiny.yaml").write_text(TABLE)
    (root / "results.md").write_text(
        "# A\n<!-- table: tiny -->\nold\n<!-- end -->\nB\n<!-- end -->\n"
    )
    return root


def compare(folder: Path, *words: object) -> int:
    """Exit status of the tool with the default options of this test and further options."""
    files = [
        f"--{name}={folder / file}"
        for name, file in (("json", "r.json"), ("markdown", "results.md"), ("plot", "p.png"))
    ]
    length = ["--seeds=3", "--jobs=1", "--repeats=1", "--overwrite"]
    where = [
        f"--store={folder / 'store'}",
        f"--out={folder / 'out'}",
        f"--table={folder / 'tiny.yaml'}",
    ]
    return models.main([*where, *length, *files, *map(str, words)])


def rows_in(file: Path) -> Any:
    return json.loads(file.read_text())["rows"]


@pytest.fixture(scope="module")
def first(folder: Path) -> list[dict[str, Any]]:
    """Rows of the first comparison: one is trained, the other one is invalid."""
    assert compare(folder) == 1
    return rows_in(folder / "r.json")


def test_a_row_is_trained_scored_and_measured_and_an_invalid_one_is_listed(
    folder: Path, first: list[dict[str, Any]]
) -> None:
    row, refused = first
    assert [row["name"], row["failed"], refused["seeds"]] == ["Motion alone", [], {}]
    assert len(refused["failed"]) == 1 and "hats" in refused["failed"][0]
    length = row["seeds"]["3"]["run"]
    assert (length["epochs"], length["steps"]) == (1, None) and length["minutes"] > 0
    assert row["cost"]["parameters"] > 1000
    assert all(
        row["cost"][name] >= 0
        for name in ("latency_1_ms", "latency_32_ms", "step_32_ms", "load_before")
    )
    assert (
        row["cost"]["forward_mb"] >= row["cost"]["base_mb"] > 50
        and row["cost"]["step_mb"] > row["cost"]["step_base_mb"]
    )
    text = (folder / "results.md").read_text()
    assert text.startswith("# A\n<!-- table: tiny -->\nAccuracy") and text.endswith(
        "\n<!-- end -->\nB\n<!-- end -->\n"
    )
    assert "old" not in text and "| Motion alone |" in text and "- refused: " in text
    assert f"{row['mean']['minFDE6']:.3f}".removeprefix("0") in text
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    files = [
        folder / "out" / "motion_alone" / name
        for name in ("seed3/run.json", "seed3/scores.json", "cost.json")
    ]
    for record in map(json.loads, (path.read_text() for path in (*files, folder / "r.json"))):
        assert record["commit"] and record["command"].startswith("python ")
    assert f"Tables made by commit {record['commit']}." in text


def test_a_folder_with_another_recipe_is_an_error(
    folder: Path, first: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "r.md").write_text("<!-- table: longer -->\n<!-- end -->\n")
    longer = TABLE.replace("trainer.epochs: 1", "trainer.epochs: 2")
    longer = longer.replace("focal.yaml", str(folder / "focal.yaml"))
    (tmp_path / "longer.yaml").write_text(longer)
    files = {"table": "longer.yaml", "json": "r.json", "markdown": "r.md"}
    assert compare(folder, *(f"--{name}={tmp_path / file}" for name, file in files.items())) == 1
    row = rows_in(tmp_path / "r.json")[0]
    assert "another recipe or store" in row["failed"][0] and row["seeds"] == {}


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--sedes", "--sedes: neither an option of this tool nor a field of a recipe"),
        ("--trainer.threads", "--trainer.threads: this tool sets the field; leave it out"),
        ("--optim.cilp", "unknown field 'cilp'"),
    ],
)
def test_wrong_options_are_refused_before_a_file_is_replaced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, line: str
) -> None:
    (tmp_path / "t.yaml").write_text(f"- {{name: a, config: {folder / 'focal.yaml'}}}\n")
    (tmp_path / "r.md").write_text("<!-- table: t -->\npublished\n<!-- end -->\n")
    files = [
        f"--table={tmp_path / 't.yaml'}",
        f"--markdown={tmp_path / 'r.md'}",
        f"--out={tmp_path / 'out'}",
    ]
    assert compare(folder, *files, option, 3) == 1
    assert line in capsys.readouterr().err
    assert "published" in (tmp_path / "r.md").read_text() and not (tmp_path / "out").exists()


@pytest.fixture
def trained_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings run in this process, and no cost is measured."""

    def train_here(command: list[str], **_: Any) -> SimpleNamespace:
        code = run(*command[3:])
        return SimpleNamespace(poll=lambda: code, wait=lambda: code)

    monkeypatch.setattr(trainings, "subprocess", SimpleNamespace(Popen=train_here))
    monkeypatch.setattr(models, "cost", lambda *_: {})


@pytest.mark.usefixtures("trained_here")
def test_a_second_stage_starts_from_the_first_stage_of_the_same_seed(folder: Path) -> None:
    data = "data: {batch_size: 4, batch: {targets: focal}}\ntrainer: {epochs: 1}\n"
    (folder / "first.yaml").write_text("model:\n  agentformer:" + indent(CVAE, "    ") + data)
    second = "model:\n  agentformer_sampler:\n    hidden: [8, 8]\n    cvae:"
    (folder / "second.yaml").write_text(second + indent(CVAE, "      ") + data)
    (folder / "stages.yaml").write_text(STAGES)
    (folder / "stages.md").write_text("<!-- table: stages -->\n<!-- end -->\n")
    files = {"table": "stages.yaml", "markdown": "stages.md", "json": "s.json"}
    words = [*(f"--{name}={folder / file}" for name, file in files.items()), "--seeds", 5]
    assert compare(folder, *words) == 0
    assert [(list(row["seeds"]), row["failed"]) for row in rows_in(folder / "s.json")] == [
        (["5"], [])
    ] * 2
    paths = [folder / "out" / name / "seed5" / "best.ckpt" for name in ("second", "first")]
    second_stage, first_stage = (
        torch.load(path, weights_only=True)["state_dict"] for path in paths
    )
    copied = {
        key.replace("cvae.", ""): value for key, value in second_stage.items() if "cvae." in key
    }
    assert copied and all(torch.equal(value, first_stage[key]) for key, value in copied.items())
    row, _ = trainings.read_table(folder / "stages.yaml")
    other = trainings.plan(row, 4, folder / "store", folder / "out")
    assert other.recipe.first_stage == str(folder / "out" / "first" / "seed4" / "best.ckpt")
    assert (
        compare(folder, *words, "--finished", f"--out={folder / 'out' / '..' / 'out'}") == 0
    )  # moved folders are the same run


def metrics_in(file: Path) -> dict[str, float]:
    """The numbers of a file of `evaluate --json` without its protocol and tables."""
    metrics = {}
    for name, value in json.loads(file.read_text()).items():
        if name != "num_skipped" and isinstance(value, int | float):
            metrics[name] = value
    return metrics


@pytest.mark.usefixtures("trained_here")
def test_rows_with_a_length_in_steps_are_scored_at_the_end(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: dict[str, Any] = {"trainer.epochs": None, "trainer.steps": 5}
    usual_row = {"name": "usual", "config": "focal.yaml", "arguments": arguments}
    fast_arguments = arguments | {"optim.learning_rate": 0.01}
    fast_row = {"name": "fast", "config": "focal.yaml", "arguments": fast_arguments}
    still_row = {"name": "cv", "model": "constant_velocity"}
    (folder / "steps.yaml").write_text(yaml.safe_dump([usual_row, fast_row, still_row]))
    (folder / "steps.md").write_text("<!-- table: steps -->\n<!-- end -->\n")
    files = {"table": "steps.yaml", "markdown": "steps.md", "json": "m.json"}
    words = [f"--{name}={folder / file}" for name, file in files.items()]
    field_of_all_recipes = "--trainer.steps=4"
    assert compare(folder, *words, "--seeds", 1, 2, "--paired", field_of_all_recipes) == 0
    assert "usual/seed1: 4 steps" in capsys.readouterr().out

    usual, fast, still = rows_in(folder / "m.json")
    run_of_usual = usual["seeds"]["1"]["run"]
    assert (run_of_usual["steps"], run_of_usual["epochs"]) == (4, None)
    last = folder / "out" / "fast" / "seed2" / "last.ckpt"
    scores = folder / "m-last.json"
    assert run("evaluate", "--checkpoint", last, "--store", folder / "store", "--json", scores) == 0
    expected = metrics_in(scores)
    assert fast["seeds"]["2"]["scores"] == pytest.approx(expected, rel=1e-6)
    rows = [models.Result(row) for row in trainings.read_table(folder / "steps.yaml")]
    assert models.differences(rows, folder) == {}  # no row has a finished seed

    text = (folder / "steps.md").read_text()
    assert "Differences from 'usual' with paired 95 % intervals over scenes:" in text
    [line] = [line for line in text.split("\n") if line.startswith("| cv | ") and " to " in line]
    minfde6 = line.split(" | ")[2]
    difference, low, high = map(float, re.findall(r"[-+]\d*\.\d+", minfde6))
    expected_difference = still["mean"]["minFDE6"] - usual["mean"]["minFDE6"]
    assert difference == pytest.approx(expected_difference, abs=6e-4)
    assert low <= difference <= high


def test_errors_of_agents_are_means_over_seeds(tmp_path: Path) -> None:
    """Ids may look like missing values."""
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for number, file in enumerate(files):
        rows = f"NA,null,{number}.0\nx,1,{number + 2}.0\n"
        file.write_text(f"scenario_id,track_id,minFDE6\n{rows}")
    means = models.mean_errors(files)
    assert means.minFDE6.to_dict() == {("NA", "null"): 0.5, ("x", "1"): 2.5}

    files[1].write_text("scenario_id,track_id,minFDE6\nx,1,0.0\n")
    with pytest.raises(TrajformerError, match=r"b\.csv: other agents than .*a\.csv"):
        models.mean_errors(files)


def test_figures_are_equal_to_evaluate(folder: Path, first: list[dict[str, Any]]) -> None:
    best, store = folder / "out" / "motion_alone" / "seed3" / "best.ckpt", folder / "store"
    assert run("evaluate", "--checkpoint", best, "--store", store, "--json", folder / "e.json") == 0
    expected = metrics_in(folder / "e.json")
    assert first[0]["seeds"]["3"]["scores"] == pytest.approx(expected, rel=1e-6)
    assert {name: first[0]["mean"][name] for name in expected} == pytest.approx(expected, rel=1e-6)
    kept = models.score("constant_velocity", folder / "cv", store, "val")
    assert (
        run(
            "evaluate",
            "--model",
            "constant_velocity",
            "--store",
            store,
            "--json",
            folder / "cv.json",
        )
        == 0
    )
    assert kept["scores"] == pytest.approx(metrics_in(folder / "cv.json"), rel=1e-6)


def test_scenes_without_a_focal_agent_are_scored(tmp_path: Path) -> None:
    """They have no manoeuvres, as in Stanford Drone."""
    scene = make_scene(6)
    scene = replace(scene, agent_role=np.minimum(scene.agent_role, np.uint8(AgentRole.SCORED)))
    write_shard(shard_path(tmp_path, "val", 0), [scene], ShardInfo("synthetic", "val"))
    found = models.score("constant_velocity", tmp_path / "out", tmp_path, "val")
    assert found["scores"]["num_agents"] > 0 and {
        kind["count"] for kind in found["manoeuvres"].values()
    } == {0}


def test_finished_rows_are_reused(
    folder: Path, first: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = folder / "out" / "motion_alone"
    written = {
        path: path.stat().st_mtime_ns for path in (row / "cost.json", *row.glob("seed3/*.*"))
    }
    monkeypatch.setattr(trainings.Training, "start", lambda *_: pytest.fail("trained again"))
    assert compare(folder) == 1
    assert rows_in(folder / "r.json") == first
    assert compare(folder, "--seeds", 3, 4, "--finished") == 1
    again, refused = rows_in(folder / "r.json")
    assert again == first[0] and refused["seeds"] == {}
    assert {path: path.stat().st_mtime_ns for path in written} == written


def plan(folder: Path, name: str) -> trainings.Training:
    row = trainings.Row(name, str(folder / "focal.yaml"))
    return trainings.plan(row, 0, folder / "store", folder / "plans")


def test_a_second_stage_in_steps_has_its_first_stage(folder: Path) -> None:
    arguments = {"trainer.epochs": None, "trainer.steps": 1}
    row = trainings.Row("b", str(folder / "focal.yaml"), arguments, after="a")
    made = trainings.plan(row, 2, folder / "store", folder / "plans")
    assert made.recipe.first_stage == str(folder / "plans" / "a" / "seed2" / "best.ckpt")
    assert (made.recipe.trainer.threads, made.checkpoint.name) == (1, "last.ckpt")
    assert made.recipe.trainer.validate_every == trainings.NEVER
    assert made.recipe.data.train == str(folder / "store")


def test_a_failed_training_does_not_affect_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainings, "COMMAND", [sys.executable, "-c", STUB])
    plans = [plan(folder, name) for name in ("one", "fails", "two")]
    assert trainings.train_all(plans, 2) == {plans[1]: "trajformer train: no such thing"}
    assert [one.record()["done"] for one in plans] == [True, False, True]
    words = (plans[0].folder / "words.txt").read_text().split()
    assert words[0] == "train" and "--resume" not in words
    assert "epochs: 3\n" in (plans[0].folder / "recipe.yaml").read_text()


def test_a_record_of_another_store_is_refused(folder: Path) -> None:
    one = plan(folder, "recorded")
    one.folder.mkdir(parents=True)
    one.write_record(done=True)
    record = one.record()
    for name in ("data", "val"):
        assert record[name]
        (one.folder / "run.json").write_text(json.dumps(record | {name: "other"}))
        with pytest.raises(TrajformerError, match="another recipe or store"):
            one.record()


def test_the_sets_of_eth_ucy_are_scored_by_the_protocol(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def evaluate(command: list[str], check: bool) -> None:
        commands.append(command)
        errors = {"ADE_20": 0.2, "FDE_20": 0.3, "ADE_1": 0.5, "FDE_1": 1.0, "collisions": 0.0}
        later = errors | {"ADE_20": 0.4}
        names = (*eth_ucy.SETS, "mean")
        results = {"seed0": dict.fromkeys(names, errors), "seed1": dict.fromkeys(names, later)}
        (tmp_path / "results.json").write_text(json.dumps(results))

    monkeypatch.setattr(eth_ucy, "subprocess", SimpleNamespace(run=evaluate))
    finished = []
    for row in trainings.read_table(ROOT / "configs" / "compare" / "eth_ucy.yaml"):
        for seed in (0, 1):
            training = trainings.plan(row, seed, folder / "store", tmp_path / "out")
            training.folder.mkdir(parents=True)
            training.checkpoint.write_text(f"{row.name} {seed}")
            finished.append(training)
    assert {training.checkpoint.name for training in finished} == {"best.ckpt"}
    table = eth_ucy.protocol_table(finished, tmp_path / "raw", tmp_path)
    assert (tmp_path / "seed1" / "univ.ckpt").read_text() == "univ 1"
    assert commands[0][-2:] == [str(tmp_path / "seed0"), str(tmp_path / "seed1")]
    assert table.index.tolist() == [*eth_ucy.SETS, "mean"]
    assert table.loc["hotel", ("ADE_20", "mean")] == pytest.approx(0.3)
    with pytest.raises(TrajformerError, match="seed 1: no finished training of the set zara2"):
        eth_ucy.protocol_table(finished[:-1], tmp_path / "raw", tmp_path)


def test_an_interrupted_training_ends_and_resumes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainings, "COMMAND", [sys.executable, "-c", STUB])
    one, sleep = plan(folder, "waits"), trainings.time.sleep

    def wait(seconds: float) -> None:
        sleep(0.02)
        if (one.folder / "ready").exists():
            trainings.time.sleep = sleep  # one interrupt
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainings.time, "sleep", wait)
        trainings.train_all([one], 1)
    assert (one.folder / "last.ckpt").exists()  # SIGTERM was handled
    before = one.record()
    assert not before["done"] and before["minutes"] > 0
    assert trainings.train_all([one], 1) == {}
    assert "--resume" in (one.folder / "words.txt").read_text()
    assert one.record()["done"] and one.record()["minutes"] > before["minutes"]


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs" / "compare").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_tables_of_configs_have_different_recipes(file: Path) -> None:
    configs = [row.recipe for row in trainings.read_table(file)]
    for config in configs:
        config.build_model()
    assert len({repr(config) for config in configs}) == len(configs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: b: c", "mapping values"),
        ("- {config: a.yaml}", "row 1: no field 'name'"),
        ("- {name: a, model: nothing}", "row 1: unknown model 'nothing' .*constant_velocity"),
        ("- {name: a, config: a.yaml, arguments: [1]}", "row 1.arguments: expected dict"),
        ("- {name: a, config: a.yaml, after: b}", "row 1: after: 'b' is not a row"),
        (
            "- {name: a, config: a.yaml, after: b}\n- {name: b, config: a.yaml, after: a}",
            "row 1: after: 'b' is not a row",
        ),
        (
            "- {name: a b, config: a.yaml}\n- {name: A-b, config: a.yaml}",
            "row 1: another row has the same folder, 'a_b'",
        ),
    ],
)
def test_a_malformed_table_is_an_error(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(TrajformerError, match=expected):
        trainings.read_table(tmp_path / "t.yaml")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("store=none", "no such store"),
        ("markdown=focal.yaml", "has no '<!-- table: tiny -->'"),
        ("table=none.yaml", "none.yaml"),
    ],
)
def test_errors_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, expected: str
) -> None:
    name, file = option.split("=")
    assert compare(folder, f"--{name}={folder / file}") == 1
    error = capsys.readouterr().err
    assert error.startswith("compare: ") and expected in error and error.count("\n") == 1


def row_of(name: str, values: list[float], **cost: float) -> dict[str, Any]:
    """A row with one minFDE6 per seed."""
    by_manoeuvre = {"turn": {"count": 4, "minFDE6": 2.5, "MR6": 0.5}, "stop": {"count": 0}}
    metrics = [
        {"scores": {"num_agents": 9, "minFDE6": value}, "manoeuvres": by_manoeuvre}
        for value in values
    ]
    seeds = {str(i): part | {"run": {"minutes": 3.0 + i}} for i, part in enumerate(metrics)}
    return {"name": name, "seeds": seeds, "cost": cost, "failed": []} | table.summarize(seeds)


def test_tables_have_mean_and_deviation_and_no_empty_column() -> None:
    some = [
        row_of("a", [1.0, 1.5, 1.7], parameters=12345, latency_1_ms=12.34),
        row_of("b", [0.25]),
        row_of("none", []),
    ]
    made = {title.split(" ")[0]: (title, cells) for title, cells in table.tables(some).items()}
    assert list(made) == ["Accuracy", "By", "Cost"]  # no row has joint metrics
    accuracy, (title, by_manoeuvre), cost = made["Accuracy"][1], made["By"], made["Cost"][1]
    assert accuracy.columns.tolist() == ["minFDE6"]
    deviation = f"{statistics.stdev([1.0, 1.5, 1.7]):.3f}".removeprefix("0")
    assert accuracy.minFDE6.to_dict() == {"a": f"1.400 ({deviation})", "b": ".250", "none": "-"}
    assert "turn 4 agents" in title and by_manoeuvre.columns.tolist() == [
        "minFDE6 turn",
        "MR6 turn",
    ]
    assert cost.loc["a"].to_dict() == {
        "parameters": "12,345",
        "ms, batch 1": "12.3",
        "minutes": "4.0 (1.0)",
    }
    assert {line.count("|") for line in table.markdown("Cost", cost).splitlines()[2:]} == {5}
