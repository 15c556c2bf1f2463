"""The published table of INTERACTION with rows of models."""

from collections.abc import Mapping, Sequence

from trajformer.evaluation.protocols.benchmark import Row, as_text
from trajformer.evaluation.protocols.interaction import METRICS, TARGET_SETS, K, LocationMetrics

_PUBLISHED = {
    "HPNet": [("HPNet", ".174/.558", "Tang et al. 2024")],
    "FJMP": [("FJMP", ".194/.630", "Rowe et al. 2023")],
}
_TITLE = (
    "INTERACTION, multi-agent cases: 10 steps observed, 30 to predict (0.1 s each), "
    "means over cases, metres and shares"
)


def published_table(models: Mapping[str, Mapping[str, LocationMetrics]]) -> str:
    """The published rows and the rows of models, then all metrics of each model, as text.

    `models` are metrics by label, target set and location or "mean".
    """
    first = next(iter(models.values()))
    columns = [_short_name(location) for location in first["HPNet"]]
    parts = [_TITLE]
    for target_set in TARGET_SETS:
        by_label = {label: by_set[target_set] for label, by_set in models.items()}
        parts.append(_comparison(target_set, by_label, columns))
        for label, metrics in by_label.items():
            title = f"{label}, target set of {target_set}"
            parts.append(f"{title}\n{as_text(columns, _all_metrics(metrics))}")
    parts.append(
        "Differences: published means are over the cases of all 12 locations, and published models "
        "were trained on these,\non their training cases. The other rows are over the cases of "
        f"{len(columns) - 1} of the locations."
    )
    return "\n\n".join(parts)


def _comparison(
    target_set: str, models: Mapping[str, LocationMetrics], columns: Sequence[str]
) -> str:
    """Joint errors of the published models and of the given ones."""
    rows: list[Row] = []
    for name, cell, source in _PUBLISHED[target_set]:
        cells = ["-"] * (len(columns) - 1) + [cell]
        rows.append((name, " ".join(cells), f"{source}, 12 locations"))
    for label, metrics in models.items():
        cells = [_joint_errors(part) for part in metrics.values()]
        rows.append((label, " ".join(cells), ""))
    rule = TARGET_SETS[target_set]
    title = (
        f"target set of {target_set} ({rule}), best of {K} worlds, minima taken separately: "
        "minJointADE/minJointFDE"
    )
    return f"{title}\n{as_text(columns, rows)}"


def _joint_errors(metrics: Mapping[str, float]) -> str:
    return f"{_number(metrics, 'minJointADE', 3)}/{_number(metrics, 'minJointFDE', 3)}"


def _all_metrics(by_location: LocationMetrics) -> list[Row]:
    rows: list[Row] = []
    for name in ("num_cases", "num_cars", *METRICS):
        digits = 0 if name.startswith("num_") else 4
        cells = [_number(metrics, name, digits) for metrics in by_location.values()]
        rows.append((name, " ".join(cells), ""))
    return rows


def _number(metrics: Mapping[str, float], name: str, digits: int) -> str:
    if name not in metrics:
        return "-"
    return f"{metrics[name]:.{digits}f}"


def _short_name(location: str) -> str:
    """Short name of a location: "Inter_GL" for DR_USA_Intersection_GL."""
    kind, separator, name = location.rpartition("_")
    if not separator:
        return name
    return f"{kind.rpartition('_')[2][:5]}_{name}"
