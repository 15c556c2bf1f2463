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


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    write_forecasts(path, three())
    pq.write_table(change(pq.read_table(path)), path)
    return path


def with_column(
    name: str, values: list[object], kind: pa.DataType | None = None
) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(t.schema.get_field_index(name), name, pa.array(values, kind))


def test_round_trip_is_exact_and_keeps_ids(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "forecasts.parquet"
    given = three()
    assert write_forecasts(path, iter(given)) == 3
    found = read_forecasts(path)
    assert list(found) == ["a", "b"] and [f.track_id for f in found["a"]] == ["1", "0001"]
    for one, other in zip(given, [found["a"][0], found["b"][0], found["a"][1]], strict=True):
        order = np.argsort(-one.probability)
        np.testing.assert_array_equal(other.position, one.position[order])
        np.testing.assert_allclose(other.probability, one.probability[order], rtol=1e-14)
        assert other.position.dtype == np.float64 and other.probability.dtype == np.float64
    assert list(path.parent.iterdir()) == [path]


def test_file_has_the_challenge_columns_sorted_and_normalised(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    half = np.array(
        [0.25, 0.5, 0.251], np.float16
    )  # sums to 1.001, as a half-precision softmax may
    write_forecasts(path, [replace(forecast(modes=3), probability=half)])
    table = pq.read_table(path)
    assert table.column_names == list(COLUMNS)
    assert table.schema.field("predicted_trajectory_x").type == pa.list_(pa.float64())
    probability = np.array(table["probability"])
    assert (np.diff(probability) <= 0).all() and probability.sum() == pytest.approx(1.0, abs=1e-12)


def test_av2_reads_the_file(tmp_path: Path) -> None:
    module = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    path = tmp_path / "submission.parquet"
    single = (
        forecast("s1", "10"),
        replace(forecast("s1", "AV", seed=9), probability=forecast("s1", "10").probability),
    )
    raw = forecast(seed=4).probability.astype(np.float32) * np.float32(
        1.0005
    )  # np.isclose(1, sum) would refuse these
    write_forecasts(path, [*single, replace(forecast("s2", "x", seed=4), probability=raw)])
    predictions = module.ChallengeSubmission.from_parquet(path).predictions
    assert {scene: set(tracks) for scene, (_, tracks) in predictions.items()} == {
        "s1": {"10", "AV"},
        "s2": {"x"},
    }
    for scene, tracks in read_forecasts(path).items():
        for track in tracks:
            np.testing.assert_array_equal(predictions[scene][1][track.track_id], track.position)
            np.testing.assert_array_equal(predictions[scene][0], track.probability)


def test_files_written_by_av2_are_read(tmp_path: Path) -> None:
    module = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    given = submission.check_forecast(forecast())
    module.ChallengeSubmission({"scene": (given.probability, {"7": given.position})}).to_parquet(
        tmp_path / "f.parquet"
    )
    found = read_forecasts(tmp_path / "f.parquet")["scene"][0]
    np.testing.assert_array_equal(found.position, given.position)


def test_groups_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "TRACKS_PER_GROUP", 4)
    count = write_forecasts(
        tmp_path / "f.parquet", (forecast(str(n), modes=2, steps=3 + n) for n in range(10))
    )
    assert count == 10 and pq.ParquetFile(tmp_path / "f.parquet").num_row_groups == 3
    assert [
        f[0].position.shape[1] for f in read_forecasts(tmp_path / "f.parquet").values()
    ] == list(range(3, 13))


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
    with pytest.raises(TrajformerError, match=message):
        write_forecasts(path, [replace(good, track_id="u"), replace(good, **change)])  # type: ignore[arg-type]
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_track_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrajformerError, match="'7' of scene 'scene' is forecast twice"):
        write_forecasts(tmp_path / "f.parquet", [forecast(), forecast()])
    assert not list(tmp_path.iterdir())


def test_truncated_files_are_refused(
    tmp_path: Path,
) -> None:  # missing and foreign ones: tests/uses
    path = tmp_path / "f.parquet"
    write_forecasts(path, three())
    whole = path.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(TrajformerError, match=r"f\.parquet: not a readable parquet file"):
            read_forecasts(path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    write_forecasts(path, three())
    table = pq.read_table(path)
    number = table.schema.get_field_index("track_id")
    damaged = pa.array([b"\xf2x"] * len(table), pa.binary()).view(pa.string())
    pq.write_table(
        table.set_column(
            number, table.schema.field(number), damaged.cast(table.schema.field(number).type)
        ),
        path,
    )
    with pytest.raises(TrajformerError, match=r"f\.parquet: not a readable parquet file"):
        read_forecasts(path)


ROW = [[0.0] * 60] * 18


def shorten(table: pa.Table) -> pa.Table:
    for name in COLUMNS[3:]:
        table = with_column(name, [[0.0] * 59, *ROW[1:]])(table)
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
        (
            with_column("predicted_trajectory_x", [1.0] * 18),
            "column predicted_trajectory_x holds double",
        ),
        (with_column("probability", [float("nan")] * 18), "NaN"),
        (
            with_column("probability", [None] * 18, pa.float64()),
            "column probability has an empty cell",
        ),
        (
            with_column("predicted_trajectory_y", [*ROW[:-1], [0.0] * 59 + [float("nan")]]),
            "track '0001'.*NaN",
        ),
        (with_column("predicted_trajectory_y", [*ROW[:-1], [0.0] * 59 + [None]]), "NaN"),
        (
            with_column("predicted_trajectory_y", [*ROW[:-1], [0.0] * 59]),
            "60 values of x but 59 of y",
        ),
        (lambda t: t.slice(0, 5), "sum to"),
        (shorten, "track '1' of scene 'a': its trajectories have 59 to 60 steps"),
        (lambda t: pa.concat_tables([t, t]), "sum to 2"),
    ],
)
def test_errors_name_the_wrong_content(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    with pytest.raises(TrajformerError, match=message) as caught:
        read_forecasts(rewrite(tmp_path / "f.parquet", change))
    assert str(tmp_path / "f.parquet") in str(caught.value)


def test_other_arrow_types_and_any_row_order_are_read(tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        kinds = [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.float32()]
        schema = pa.schema(
            list(
                zip(
                    COLUMNS,
                    [*kinds, pa.large_list(pa.float32()), pa.list_(pa.float64(), 60)],
                    strict=True,
                )
            )
        )
        return (
            table.take(np.random.default_rng(0).permutation(18))
            .cast(schema)
            .append_column("note", [["x"] * 18])
        )

    found = read_forecasts(rewrite(tmp_path / "f.parquet", change))
    for given in map(submission.check_forecast, three()):
        (match,) = [f for f in found[given.scene_id] if f.track_id == given.track_id]
        np.testing.assert_allclose(match.position, given.position, atol=1e-3)
        np.testing.assert_allclose(match.probability, given.probability, rtol=1e-5)
