"""Submissions to the Argoverse 2 challenge, and scores of files of other programs."""

from pathlib import Path

from support.uses import Case


def text(content: str) -> None:
    """Write the file f.csv."""
    Path("f.csv").write_text(content)


PREDICT = "predict --model constant_velocity --store store --out f.parquet --submission"

CASES = [
    Case("write a submission of focal agents", f"{PREDICT} single", "f.parquet: .*", status=0),
    Case("a submission of all agents", f"{PREDICT} single --agents all", "has focal agents"),
    Case("a joint submission of focal agents", f"{PREDICT} multi --agents focal", "leave out"),
    Case(
        "a joint submission of a model without joint futures",
        f"{PREDICT} multi",
        "gives no joint futures",
    ),
    Case(
        "score a CSV file without all columns",
        "score f.csv --store store",
        "f.csv: no column mode, step; expected a header with scene_id, track_id, mode",
        lambda: text("scene_id,track_id,probability,x,y\n"),
    ),
    Case(
        "score a CSV file with steps from 0",
        "score f.csv --store store",
        "f.csv: step: 0 in row 2, expected .* 1 is the first step after the last observed one",
        lambda: text("scene_id,track_id,mode,probability,step,x,y\na,1,0,1,0,2,3\n"),
    ),
    Case(
        "score a CSV file with words in place of numbers",
        "score f.csv --store store",
        "f.csv: not a readable CSV file .*'left'",
        lambda: text("scene_id,track_id,mode,probability,step,x,y\na,1,0,1,1,left,3\n"),
    ),
    Case("score without a store", "score f.parquet", "--store --raw is required", status=2),
    Case(
        "score with raw data of an unknown name",
        "score f.parquet --raw argoverse3 raw",
        "--raw argoverse3: expected one of argoverse1",
    ),
]
