"""Further columns of a scoring are those of the functions of `evaluation.metrics`."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.training import training_store

from trajformer.errors import TrajformerError
from trajformer.evaluation.breakdown import details, details_by_group, paired_details
from trajformer.evaluation.details import DETAILS
from trajformer.evaluation.evaluate import evaluate, track_forecasts
from trajformer.evaluation.metrics import calibration
from trajformer.evaluation.metrics.boxes import overlaps
from trajformer.evaluation.metrics.map_compliance import SceneMap, compliance
from trajformer.evaluation.reliability import reliability_diagram
from trajformer.evaluation.scoring import Rules, Scoring
from trajformer.evaluation.tables import as_plain
from trajformer.models.forecaster import Predictor
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.scene import PIXELS
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore

RULES = Rules(details=tuple(DETAILS), collision_m=1.0, best_of=4)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> SceneStore:
    return SceneStore(training_store(tmp_path_factory.mktemp("details") / "s", 6, 1), "train")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return load_predictor("constant_velocity", targets="all")


@pytest.fixture(scope="module")
def scoring(scenes: SceneStore, predictor: Predictor) -> Scoring:
    return evaluate(predictor, scenes, rules=RULES)


def test_columns_are_those_of_the_functions(
    scenes: SceneStore, predictor: Predictor, scoring: Scoring
) -> None:
    tracks = {(one.scene_id, one.track_id): one for one in track_forecasts(predictor, scenes)}
    some_known = False
    for scene in scenes:
        rows = scoring.per_agent[scoring.per_agent.scenario_id == scene.scene_id]
        agents = np.array([scene.agent_id.index(name) for name in rows.track_id])
        forecasts = [tracks[scene.scene_id, name] for name in rows.track_id]
        probability = np.stack([one.probability for one in forecasts])
        modes = np.stack([one.position for one in forecasts]) - scene.origin
        best = modes[np.arange(len(modes)), probability.argmax(1)][:, None]
        on_map = compliance(SceneMap.of(scene), scene, agents, best)
        np.testing.assert_allclose(rows.off_road, on_map.off_road[:, 0])
        np.testing.assert_allclose(rows.wrong_way, on_map.wrong_way[:, 0])
        distance = on_map.lane_distance[:, 0].mean(-1)
        np.testing.assert_allclose(rows.lane_distance, distance, atol=1e-4)
        some_known |= bool(np.isfinite(on_map.off_road).any())
        boxes = overlaps(scene, agents, best)
        expected = np.where(boxes.known, boxes.overlap, np.nan)[:, 0]
        np.testing.assert_allclose(rows.overlap, expected)
        truth = scene.position[agents, scene.num_history :]
        error = calibration.end_errors(modes, truth, scene.valid[agents, scene.num_history :])
        nearest = calibration.nearest_mode(error)
        score = calibration.brier_score(probability, nearest)
        np.testing.assert_allclose(rows.brier_score, score, atol=1e-5)
        np.testing.assert_allclose(rows.near_2m, calibration.near_any_mode(error)[:, 1])
    assert some_known


def test_crowd_metrics_have_the_rules_of_the_scoring(scoring: Scoring) -> None:
    agents = scoring.per_agent
    pd.testing.assert_series_equal(agents.ADE_4, agents.ADE4, check_names=False)
    pd.testing.assert_series_equal(agents.FDE_4, agents.FDE4, check_names=False)
    assert (agents.JADE_4 >= 0).all()
    assert 0.0 <= agents.collision_rate_4.mean() <= 1.0


def test_tables_state_how_many_agents_have_a_value(scoring: Scoring) -> None:
    rows = {row["metric"]: row for row in as_plain(details([scoring]))}
    agents = scoring.per_agent
    for name in ("off_road", "max_acceleration", "overlap"):
        assert rows[name]["agents"] == agents[name].notna().sum()
        assert rows[name]["known"] == pytest.approx(agents[name].notna().mean())
        assert rows[name]["predicted"]["mean"] == pytest.approx(agents[name].mean())
        recorded = agents[f"recorded_{name}"].mean()
        assert rows[name]["recorded"]["mean"] == pytest.approx(recorded)
    assert rows["brier_score"]["recorded"] == ""
    assert scoring.metrics.keys().isdisjoint(set(scoring.detail_columns))


def test_assumed_sizes_are_stated_and_not_compared(scoring: Scoring) -> None:
    kinds = ["vehicle", "pedestrian"] * (len(scoring.per_agent) // 2 + 1)
    agents = scoring.per_agent.assign(type=kinds[: len(scoring.per_agent)], size_assumed=1.0)
    without_sizes = replace(scoring, per_agent=agents)
    text = details([without_sizes]).title
    assert text.endswith("; size_assumed: pedestrian 0.7 x 0.7 m, vehicle 4.5 x 1.9 m")
    recorded = replace(scoring, per_agent=agents.assign(size_assumed=0.0))
    assert "0.7" not in details([recorded]).title
    compared = [row[0] for row in paired_details(without_sizes, without_sizes).rows]
    assert "overlap" in compared
    assert "size_assumed" not in compared


def test_the_calibration_table_is_a_reliability_diagram(scoring: Scoring) -> None:
    *bins, total = as_plain(reliability_diagram([scoring]))
    agents = scoring.per_agent
    assert sum(row["agents"] for row in bins) == total["agents"] == len(agents)
    assert total["nearest"]["mean"] == pytest.approx(agents.top_is_nearest.mean())
    gaps = sum(row["agents"] * abs(row["mean"] - row["nearest"]["mean"]) for row in bins)
    assert total["gap"]["mean"] == pytest.approx(gaps / len(agents))
    assert total["gap"]["low"] <= total["gap"]["mean"] <= total["gap"]["high"]


def test_details_of_a_group_are_those_of_its_agents(scoring: Scoring) -> None:
    by_type = as_plain(details_by_group([scoring], "type"))
    [kind, *_] = sorted(set(scoring.per_agent.type))
    of_kind = scoring.per_agent[scoring.per_agent.type == kind]
    expected = as_plain(details([replace(scoring, per_agent=of_kind)]))
    assert [row for row in by_type if row["type"] == kind] == [
        {"type": kind, **row} for row in expected
    ]
    assert {row["type"] for row in by_type} == set(scoring.per_agent.type)

    without_areas = replace(scoring, per_agent=scoring.per_agent.assign(off_road=np.nan))
    assert "off_road" in [row["metric"] for row in as_plain(details([without_areas]))]
    of_groups = as_plain(details_by_group([without_areas], "type"))
    assert {row["metric"] for row in by_type} - {row["metric"] for row in of_groups} == {"off_road"}


def test_details_are_compared_without_a_judgement_of_their_sign(scoring: Scoring) -> None:
    moved = scoring.per_agent.assign(near_2m=scoring.per_agent.near_2m - 0.25)
    baseline = replace(scoring, per_agent=moved, label="baseline")
    rows = {row["metric"]: row for row in as_plain(paired_details(scoring, baseline))}
    of_forecasts = {row["metric"] for row in as_plain(details([scoring]))} - {"size_assumed"}
    assert set(rows) == of_forecasts
    assert rows["near_2m"]["difference"]["mean"] == pytest.approx(0.25)
    assert (rows["near_2m"]["smaller"], rows["near_2m"]["larger"]) == (0.0, 1.0)
    assert rows["overlap"]["difference"]["mean"] == 0.0
    by_speed = as_plain(paired_details(scoring, baseline, "speed"))
    assert sum(row["agents"] for row in by_speed if row["metric"] == "near_2m") == len(moved)


def test_details_need_metres() -> None:
    with pytest.raises(TrajformerError, match="--details: its metrics need metres"):
        RULES.check(replace(DataSpec(), unit=PIXELS))


def test_a_plain_scoring_has_no_details(predictor: Predictor, scenes: SceneStore) -> None:
    plain = evaluate(predictor, scenes)
    assert plain.detail_columns == ()
    assert "off_road" not in plain.per_agent
