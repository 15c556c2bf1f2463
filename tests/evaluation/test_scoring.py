"""The record of a scoring: groups, horizons, rules, differences, and forecasts from files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.models import SE2FORMER
from support.training import training_store

from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.breakdown import by_group, by_horizon, overall, paired, speed_names
from trajformer.evaluation.evaluate import evaluate, track_forecasts
from trajformer.evaluation.forecast_file import (
    AllModes,
    Modes,
    TrackForecast,
    read_modes,
    write_forecasts,
)
from trajformer.evaluation.score import score
from trajformer.evaluation.scoring import MOVING_M, Rules, Scoring
from trajformer.evaluation.tables import Table, as_plain
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import build_random

RULES = Rules(horizons_s=(0.5, 1.2), best_of=3)
KEYS = ["scenario_id", "track_id"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> SceneStore:
    """Twelve scenes of 1.2 s of future."""
    store = training_store(tmp_path_factory.mktemp("scoring") / "store", 12, 2)
    return SceneStore(store, "train")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return load_predictor("constant_velocity", targets="all")


@pytest.fixture(scope="module")
def scoring(scenes: SceneStore, predictor: Predictor) -> Scoring:
    return replace(evaluate(predictor, scenes, rules=RULES), label="model")


@pytest.fixture(scope="module")
def modes(scenes: SceneStore, predictor: Predictor) -> AllModes:
    """The forecasts of the model as rows of a file."""
    tracks = {}
    for one in track_forecasts(predictor, scenes):
        tracks[one.scene_id, one.track_id] = Modes(one.probability.tolist(), [*one.position])
    return tracks


def direct_errors(scenes: SceneStore, forecasts: AllModes, step: int, k: int) -> pd.DataFrame:
    """minADE, minFDE and MR of the best of k modes after some steps, by plain numpy."""
    rows = []
    for scene in scenes:
        for agent, track_id in enumerate(scene.agent_id):
            valid = scene.valid[agent, scene.num_history :]
            modes = forecasts.get((scene.scene_id, track_id))
            if modes is None or not valid[-1] or not valid[step - 1]:
                continue
            truth = scene.position[agent, scene.num_history :].astype(np.float64) + scene.origin
            order = np.argsort(-np.array(modes.probability), kind="stable")[:k]
            error = np.linalg.norm(np.stack(modes.position)[order] - truth, axis=-1)[:, :step]
            best = error[:, -1].argmin()
            ade = error[best, valid[:step]].mean()
            fde = error[best, -1]
            rows.append((scene.scene_id, track_id, ade, fde, float(fde > 2.0)))
    return pd.DataFrame(rows, columns=[*KEYS, "minADE", "minFDE", "MR"]).set_index(KEYS)


def cells(table: Table, **values: str) -> dict[str, Any]:
    """The only row of a table with these values."""
    rows = [row for row in as_plain(table) if values.items() <= row.items()]
    [row] = rows
    return row


def test_errors_by_horizon_equal_a_direct_computation(
    scenes: SceneStore, scoring: Scoring, modes: AllModes
) -> None:
    table = by_horizon([scoring])
    for seconds, step in (("0.5", 5), ("1.2", 12)):
        row = cells(table, horizon=seconds)
        expected = direct_errors(scenes, modes, step, 3)
        assert row["agents"] == len(expected) > 30
        for name in ("minADE", "minFDE", "MR"):
            assert row[f"{name}3"]["mean"] == pytest.approx(expected[name].mean(), abs=1e-6)
    agents = scoring.per_agent.set_index(KEYS)
    at_the_end = direct_errors(scenes, modes, 12, 3)
    difference = agents["minFDE3"] - at_the_end.minFDE
    assert difference.abs().max() < 1e-5
    np.testing.assert_array_equal(agents["minFDE3"], agents["minFDE3@1.2s"])
    assert (agents.minADE3 >= agents.ADE3).all()  # separate minima


@pytest.mark.parametrize(
    ("model", "k"), [("constant_velocity", 6), ("constant_velocity_sampled", 20)]
)
def test_the_best_of_a_usual_number_of_modes_also_has_separate_minima(
    scenes: SceneStore, model: str, k: int
) -> None:
    rules = Rules(best_of=k, horizons_s=(1.0,))
    agents = evaluate(load_predictor(model), scenes, rules=rules).per_agent
    assert agents.columns.is_unique
    assert (agents[f"ADE{k}"] <= agents[f"minADE{k}"]).all()
    np.testing.assert_array_equal(agents[f"FDE{k}"], agents[f"minFDE{k}"])


def test_horizons_that_the_scenes_do_not_have(scenes: SceneStore, predictor: Predictor) -> None:
    cases = {3.0: "expected 0.1 s to 1.2 s", 0.55: "expected a multiple of the scenes' period"}
    for horizon_s, message in cases.items():
        with pytest.raises(TrajformerError, match=f"--horizons {horizon_s:g}: {message}"):
            evaluate(predictor, scenes, rules=Rules(horizons_s=(horizon_s,)))


def test_groups_have_the_means_of_their_agents(scoring: Scoring) -> None:
    agents = scoring.per_agent
    for key in ("type", "manoeuvre", "role", "city"):
        rows = as_plain(by_group([scoring], key, ["minFDE6"]))  # type: ignore[arg-type]
        expected = agents.assign(**{key: agents[key].replace("", "unknown")})
        means = expected.groupby(key).minFDE6.mean()
        assert [row[key] for row in rows] == means.index.tolist()
        assert [row["minFDE6"]["mean"] for row in rows] == pytest.approx(means.tolist())
    rows = as_plain(by_group([scoring], "speed"))
    slow = agents[agents.speed < 0.5]
    assert rows[0]["speed"] == speed_names()[0]
    assert rows[0]["agents"] == len(slow) > 0
    assert sum(row["agents"] for row in rows) == len(agents)


def test_speed_city_and_role_are_those_of_the_scene(scenes: SceneStore, scoring: Scoring) -> None:
    rows = scoring.per_agent.set_index(KEYS)
    for scene in scenes:
        for agent, track_id in enumerate(scene.agent_id):
            if (scene.scene_id, track_id) in rows.index:
                row = rows.loc[scene.scene_id, track_id]
                if scene.valid[agent, scene.num_history - 1]:
                    velocity = scene.velocity[agent, scene.num_history - 1]
                    assert row.speed == pytest.approx(np.linalg.norm(velocity), abs=1e-4)
                assert row.city == scene.city
                assert row.role == ("context", "scored", "focal")[scene.agent_role[agent]]


def test_rules_restrict_the_agents(
    scenes: SceneStore, predictor: Predictor, scoring: Scoring
) -> None:
    moving = evaluate(predictor, scenes, rules=Rules(moving=True)).per_agent
    complete = evaluate(predictor, scenes, rules=Rules(complete=True)).per_agent
    is_complete = scoring.per_agent.future_steps == 12
    assert 0 < len(complete) == is_complete.sum() < len(scoring.per_agent)
    expected = set[tuple[str, str]]()
    for scene in scenes:
        offset = scene.position[:, -1] - scene.position[:, scene.num_history - 1]
        is_moving = scene.valid[:, -1] & (np.linalg.norm(offset, axis=-1) >= MOVING_M)
        is_moving &= scene.valid[:, scene.num_history - 1]
        expected |= {(scene.scene_id, scene.agent_id[row]) for row in is_moving.nonzero()[0]}
    present = set(zip(moving.scenario_id, moving.track_id, strict=True))
    assert expected <= present
    assert 0 < len(present) < len(scoring.per_agent)


def test_paired_differences_equal_a_direct_computation(
    scenes: SceneStore, scoring: Scoring, modes: AllModes
) -> None:
    """The other forecast has half of the agents and is 1 m off; better where that helps."""
    shifted = {}
    offset = np.array([1.0, 0.0])
    for number, (key, of_track) in enumerate(modes.items()):
        if number % 2:
            positions = [position + offset for position in of_track.position]
            shifted[key] = Modes(of_track.probability, positions)
    other = score(shifted, scenes, agents="all", rules=RULES, label="shifted")
    row = cells(paired(other, scoring, names=["minFDE6"]), metric="minFDE6")
    merged = other.per_agent.merge(scoring.per_agent, on=KEYS)
    gap = merged.minFDE6_x - merged.minFDE6_y
    of_scenes = gap.groupby(merged.scenario_id).sum()
    assert row["agents"] == len(merged)
    assert row["difference"]["mean"] == pytest.approx(gap.mean(), abs=1e-9)
    assert row["difference"]["low"] < gap.mean() < row["difference"]["high"]
    assert row["better"] == (of_scenes < 0).mean()
    assert row["worse"] == (of_scenes > 0).mean()
    of_types = as_plain(paired(other, scoring, "type", ["minFDE6"]))
    means = gap.groupby(merged.type_x).mean()
    in_table = [one["difference"]["mean"] for one in of_types]
    assert in_table == pytest.approx(means.tolist(), abs=1e-9)


def test_a_scoring_against_itself_has_no_difference(
    scenes: SceneStore, scoring: Scoring, modes: AllModes
) -> None:
    """Rounding errors are no differences."""
    file = score(modes, scenes, agents="all", rules=RULES, label="file")
    for row in as_plain(paired(file, scoring)):
        assert (row["better"], row["worse"]) == (0.0, 0.0)
        assert row["difference"]["low"] == row["difference"]["high"] == 0.0


@pytest.mark.parametrize("joint", [False, True])
def test_a_forecast_file_has_the_scores_of_its_model(
    scenes: SceneStore, tmp_path: Path, joint: bool
) -> None:
    model = Predictor(build_random(SE2FORMER).eval(), BatchConfig(targets="all"), joint=joint)
    expected = evaluate(model, scenes, rules=RULES)
    path = tmp_path / "forecasts.parquet"
    write_forecasts(path, track_forecasts(model, scenes))
    scored = score(read_modes(path), scenes, agents="all", rules=RULES, joint=joint)
    assert set(scored.metrics) == set(expected.metrics)
    for name, value in expected.metrics.items():
        assert scored.metrics[name] == pytest.approx(value, abs=1e-6), name
    names = list(expected.metric_columns)
    pd.testing.assert_frame_equal(scored.per_agent[names], expected.per_agent[names], atol=1e-5)
    if joint:
        pd.testing.assert_frame_equal(scored.per_scene, expected.per_scene, atol=1e-5)
    assert {finding.kind for finding in scored.findings} <= {"not counted"}


def test_forecasts_that_do_not_fit_are_listed(scenes: SceneStore, modes: AllModes) -> None:
    changed = dict(modes)
    scored = evaluate(load_predictor("constant_velocity", targets="all"), scenes).per_agent
    keys = list(zip(scored.scenario_id, scored.track_id, strict=True))
    first = changed[keys[0]]
    scene_id = keys[0][0]
    changed.pop(keys[0])
    changed[keys[1]] = Modes(first.probability * 2, first.position * 2)
    changed[keys[2]] = Modes(first.probability, [one[:-1] for one in first.position])
    changed[keys[3]] = Modes([value / 2 for value in first.probability], first.position)
    changed[keys[4]] = Modes(first.probability, [one * np.nan for one in first.position])
    changed[keys[5]] = Modes([-1.0, 2.0], first.position[:2])
    changed[scene_id, "ghost"] = first
    changed["elsewhere", "1"] = first
    result = score(changed, scenes, agents="all", label="file")
    counts = {finding.kind: finding.count for finding in result.findings}
    counts.pop("not counted", None)
    assert counts == {
        "malformed": 2,
        "duplicate": 1,
        "wrong horizon": 1,
        "probabilities": 1,
        "missing": 5,
        "unknown scene": 1,
        "unknown agent": 1,
    }
    assert len(result.per_agent) == len(keys) - 5
    lines = [finding.line() for finding in result.findings]
    assert any(f"(first: track ghost of scene {scene_id})" in line for line in lines)
    assert any("11 steps, expected 12" in line for line in lines)
    assert any("sum 0.5" in line for line in lines)


def test_a_file_without_a_usable_forecast_is_an_error(scenes: SceneStore) -> None:
    position = np.zeros((5, 2))
    with pytest.raises(TrajformerError, match=r"file: no agent .* 1 forecasts have another number"):
        score({(scenes[0].scene_id, "x"): Modes([1.0], [position])}, scenes, label="file")


def test_tracks_may_have_other_numbers_of_modes(scenes: SceneStore, modes: AllModes) -> None:
    """Another agent's mode does not change the errors of an agent with fewer modes."""
    fewer = {}
    for number, (key, of_track) in enumerate(modes.items()):
        best = int(np.argmax(of_track.probability))
        if number % 3 == 0:
            of_track = Modes([1.0], [of_track.position[best]])
        fewer[key] = of_track
    mixed = score(fewer, scenes, agents="all").per_agent.set_index(KEYS)
    single = [key for key in mixed.index if len(fewer[key].probability) == 1]
    expected = direct_errors(scenes, fewer, 12, 6)
    assert len(single) > 5
    for key in single:
        assert mixed.loc[key].minFDE6 == pytest.approx(expected.loc[key].minFDE, abs=1e-6)
        assert mixed.loc[key].minFDE1 == mixed.loc[key].minFDE6
        assert mixed.loc[key].probability6 == 1.0


def test_marginal_forecasts_are_no_joint_forecasts(scenes: SceneStore, modes: AllModes) -> None:
    changed = dict(modes)
    key = next(iter(changed))
    count = len(changed[key].probability)
    changed[key] = Modes(np.linspace(1, 2, count).tolist(), changed[key].position)
    with pytest.raises(TrajformerError, match=r"different probabilities; leave out --joint"):
        score(changed, scenes, agents="all", joint=True, label="file")


def test_intervals_are_tables_of_the_record(scoring: Scoring) -> None:
    row = cells(overall([scoring]), forecast="model")
    for name in ("minADE1", "minFDE6", "MR6"):
        assert row[name]["mean"] == pytest.approx(scoring.metrics[name], rel=1e-9)
        assert row[name]["low"] <= row[name]["mean"] <= row[name]["high"]


def test_real_scores_equal_those_of_av2(real_data: Path, tmp_path: Path) -> None:
    """Independent of this program: raw scenarios, forecasts of other code, metrics of av2."""
    metrics = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    from support.cli import run

    raw = real_data / "argoverse2"
    assert run("preprocess", "argoverse2", raw, tmp_path / "store", "--workers", 1) == 0
    rng = np.random.default_rng(0)
    forecasts = []
    expected = []
    for path in sorted(raw.glob("val/*/scenario_*.parquet")):
        table = pd.read_parquet(path)
        scored = table[table.object_category >= 2]
        for track_id, track in scored.groupby("track_id"):
            steps = track.sort_values("timestep")
            future = steps[steps.timestep >= 50]
            if len(future) != 60:
                continue
            truth = future[["position_x", "position_y"]].to_numpy()
            walk = rng.normal(0.0, 0.05, (6, 60, 2)).cumsum(1)
            probability = rng.dirichlet(np.ones(6))
            scene_id = table.scenario_id.iloc[0]
            position = truth + walk * np.arange(60)[:, None]
            forecasts.append(TrackForecast(scene_id, track_id, probability, position))
            end_errors = metrics.compute_fde(position, truth)
            best = end_errors.argmin()
            brier = metrics.compute_brier_fde(position, truth, probability, normalize=False)
            missed = metrics.compute_is_missed_prediction(position, truth)
            ade = metrics.compute_ade(position, truth)
            expected.append((ade[best], end_errors[best], float(missed[best]), brier[best]))
    write_forecasts(tmp_path / "f.parquet", forecasts)
    scenes = SceneStore(tmp_path / "store", "val")
    result = score(read_modes(tmp_path / "f.parquet"), scenes)
    names = ["minADE6", "minFDE6", "MR6", "brier_minFDE6"]
    actual = [result.metrics[name] for name in names]
    assert len(result.per_agent) == len(expected) > 3
    assert actual == pytest.approx(np.mean(expected, 0).tolist(), abs=1e-6)
