"""A fixed sample of the damages of tools/fuzz.py; raw formats are sampled by tests/data_prep/test_reader_contract.py."""

from pathlib import Path

import fuzz
import pytest


@pytest.mark.parametrize("name", fuzz.OTHERS)
def test_damaged_files_are_valid_or_refused(tmp_path: Path, name: str) -> None:
    outcomes = list(fuzz.outcomes(name, tmp_path / name, 0, 25))
    assert [reason for kind, reason in outcomes if kind == "failure"] == []
    assert "refused" in {kind for kind, _ in outcomes}


def test_another_exception_and_a_reason_without_a_file_are_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "read_forecasts", lambda path: {"a": 1 / (path.stat().st_mtime_ns != 3)})
    kinds = [kind for kind, _ in fuzz.outcomes("forecasts", tmp_path, 0, 6)]
    assert kinds == ["valid", "valid", "valid", "failure", "valid", "valid"]
