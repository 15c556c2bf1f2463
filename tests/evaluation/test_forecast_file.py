"""Forecast files: round trips, compatibility with av2, and errors of damaged files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trajformer.errors import TrajformerError
from trajformer.evaluation import forecast_file as submission
from trajformer.evaluation.forecast_file import (
    COLUMNS,
    TrackForecast,
    read_forecasts,
    write_forecasts,
)


def forecast(
    scene: str = "scene", track: str = "7", modes: int = 6, steps: int = 60, seed: int = 0
) -> TrackForecast:
    rng = np.random.default_rng(seed)
    position = 5000.0 + rng.normal(size=(modes, steps, 2)).cumsum(1)
    return TrackForecast(scene, track, rng.dirichlet(np.ones(modes)), position)


def three() -> list[TrackForecast]:
    return [forecast("a", "1", seed=1), forecast("b", "AV", seed=2), forecast("a", "0001", seed=3)]


Change = Callable[[pa.Table], pa.Table]


def rewrite(path: Path, change: Change) -> Path:
    """A file of `three` forecasts, 18 rows, with a changed table."""
    write_forecasts(path, three())
    pq.write_table(change(pq.read_table(path)), path)
    return path


def with_column(name: str, values: list[object], kind: pa.DataType | None = None) -> Change:
    column = pa.array(values, kind)
    return lambda table: table.set_column(table.schema.get_field_index(name), name, column)


def test_round_trip_is_exact_and_keeps_ids(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "forecasts.parquet"
    written = three()
    assert write_forecasts(path, iter(written)) == 3
    by_scene = read_forecasts(path)
    assert list(by_scene) == ["a", "b"]
    assert [track.track_id for track in by_scene["a"]] == ["1", "0001"]
    read = [by_scene["a"][0], by_scene["b"][0], by_scene["a"][1]]
    for one, other in zip(written, read, strict=True):
        order = np.argsort(-one.probability)
        np.testing.assert_array_equal(other.position, one.position[order])
        np.testing.assert_allclose(other.probability, one.probability[order], rtol=1e-14)
        assert other.position.dtype == np.float64
        assert other.probability.dtype == np.float64
    assert list(path.parent.iterdir()) == [path], "no temporary file"


def test_file_has_the_challenge_columns_sorted_and_normalized(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    half = np.array([0.25, 0.5, 0.251], np.float16)  # sums to 1.001, as a softmax in float16 may
    write_forecasts(path, [replace(forecast(modes=3), probability=half)])
    table = pq.read_table(path)
    assert table.column_names == list(COLUMNS)
    assert table.schema.field("predicted_trajectory_x").type == pa.list_(pa.float64())
    probability = np.array(table["probability"])
    assert (np.diff(probability) <= 0).all()
    assert probability.sum() == pytest.approx(1.0, abs=1e-12)


def test_av2_reads_the_file(tmp_path: Path) -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    path = tmp_path / "submission.parquet"
    first = forecast("s1", "10")
    second = replace(forecast("s1", "AV", seed=9), probability=first.probability)
    other_scene = forecast("s2", "x", seed=4)
    # av2 would refuse this sum
    inexact = other_scene.probability.astype(np.float32) * np.float32(1.0005)
    write_forecasts(path, [first, second, replace(other_scene, probability=inexact)])

    predictions = av2.ChallengeSubmission.from_parquet(path).predictions
    assert set(predictions) == {"s1", "s2"}
    assert set(predictions["s1"][1]) == {"10", "AV"}
    assert set(predictions["s2"][1]) == {"x"}
    for scene, tracks in read_forecasts(path).items():
        probability, positions = predictions[scene]
        for track in tracks:
            np.testing.assert_array_equal(positions[track.track_id], track.position)
            np.testing.assert_array_equal(probability, track.probability)


def test_files_written_by_av2_are_read(tmp_path: Path) -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    path = tmp_path / "f.parquet"
    written = submission.check_forecast(forecast())
    predictions = {"scene": (written.probability, {"7": written.position})}
    av2.ChallengeSubmission(predictions).to_parquet(path)
    [read] = read_forecasts(path)["scene"]
    np.testing.assert_array_equal(read.position, written.position)


def test_groups_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "TRACKS_PER_GROUP", 4)
    path = tmp_path / "f.parquet"
    source = (forecast(str(n), modes=2, steps=3 + n) for n in range(10))
    assert write_forecasts(path, source) == 10
    assert pq.ParquetFile(path).num_row_groups == 3
    steps = [tracks[0].position.shape[1] for tracks in read_forecasts(path).values()]
    assert steps == list(range(3, 13))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probability": np.array([0.5, 0.4])}, "sum to 0.9"),
        ({"probability": np.array([1.5, -0.5])}, "sum to"),
        ({"probability": np.array([np.nan, 1.0])}, "NaN"),
        ({"probability": np.ones(1)}, "position has shape"),
        ({"probability": np.ones(0), "position": np.zeros((0, 3, 2))}, "expected \\[K\\]"),
        ({"position": np.zeros((2, 3))}, "position has shape"),
        ({"position": np.zeros((2, 0, 2))}, "position has shape"),
        ({"position": np.full((2, 3, 2), np.inf)}, "infinity"),
        ({"track_id": ""}, "empty"),
    ],
)
def test_malformed_forecast_is_refused_and_the_old_file_kept(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "f.parquet"
    good = TrackForecast("s", "t", np.array([0.5, 0.5]), np.zeros((2, 3, 2)))
    write_forecasts(path, [good])
    before = path.read_bytes()
    malformed = replace(good, **change)  # type: ignore[arg-type]
    with pytest.raises(TrajformerError, match=message):
        write_forecasts(path, [replace(good, track_id="u"), malformed])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path], "no temporary file"


def test_a_track_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrajformerError, match="'7' of scene 'scene' is forecast twice"):
        write_forecasts(tmp_path / "f.parquet", [forecast(), forecast()])
    assert not list(tmp_path.iterdir())


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    write_forecasts(path, three())
    whole = path.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(TrajformerError, match=r"f\.parquet: not a readable parquet file"):
            read_forecasts(path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index("track_id")
        field = table.schema.field(index)
        not_utf8 = pa.array([b"\xf2x"] * len(table), pa.binary()).view(pa.string())
        return table.set_column(index, field, not_utf8.cast(field.type))

    path = rewrite(tmp_path / "f.parquet", change)
    with pytest.raises(TrajformerError, match=r"f\.parquet: not a readable parquet file"):
        read_forecasts(path)


PATH = [0.0] * 60
SHORT = [0.0] * 59
WITH_NAN = [*SHORT, float("nan")]
WITH_EMPTY = [*SHORT, None]
OTHERS: list[object] = [PATH] * 17  # of 18 rows


def shorten_first(table: pa.Table) -> pa.Table:
    for name in ("predicted_trajectory_x", "predicted_trajectory_y"):
        table = with_column(name, [SHORT, *OTHERS])(table)
    return table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["track_id", "probability"]), "no column track_id, probability"),
        (with_column("track_id", list(range(18))), "column track_id holds int64, expected text"),
        (
            with_column("probability", ["1"] * 18),
            "column probability holds string, expected floats",
        ),
        (with_column("predicted_trajectory_x", [1.0] * 18), "trajectory_x holds double"),
        (with_column("probability", [float("nan")] * 18), "NaN"),
        (with_column("probability", [None] * 18, pa.float64()), "probability has an empty cell"),
        (with_column("predicted_trajectory_y", [*OTHERS, WITH_NAN]), "track '0001'.*NaN"),
        (with_column("predicted_trajectory_y", [*OTHERS, WITH_EMPTY]), "NaN"),
        (with_column("predicted_trajectory_y", [*OTHERS, SHORT]), "60 values of x but 59 of y"),
        (lambda t: t.slice(0, 5), "sum to"),
        (shorten_first, "track '1' of scene 'a': its trajectories have 59 to 60 steps"),
        (lambda t: pa.concat_tables([t, t]), "sum to 2"),
    ],
)
def test_errors_name_the_wrong_content(tmp_path: Path, change: Change, message: str) -> None:
    path = rewrite(tmp_path / "f.parquet", change)
    with pytest.raises(TrajformerError, match=message) as caught:
        read_forecasts(path)
    assert str(path) in str(caught.value)


def test_other_arrow_types_and_any_row_order_are_read(tmp_path: Path) -> None:
    kinds = {
        "scenario_id": pa.large_string(),
        "track_id": pa.dictionary(pa.int32(), pa.string()),
        "probability": pa.float32(),
        "predicted_trajectory_x": pa.large_list(pa.float32()),
        "predicted_trajectory_y": pa.list_(pa.float64(), 60),
    }

    def change(table: pa.Table) -> pa.Table:
        order = np.random.default_rng(0).permutation(18)
        other = table.take(order).cast(pa.schema(kinds))
        return other.append_column("note", [["x"] * 18])

    by_scene = read_forecasts(rewrite(tmp_path / "f.parquet", change))
    for written in map(submission.check_forecast, three()):
        tracks = by_scene[written.scene_id]
        (read,) = [track for track in tracks if track.track_id == written.track_id]
        np.testing.assert_allclose(read.position, written.position, atol=1e-3)
        np.testing.assert_allclose(read.probability, written.probability, rtol=1e-5)
