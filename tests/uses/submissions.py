"""Submissions to the Argoverse 2 challenge, and their contradictions."""

from support.uses import Case

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
]
