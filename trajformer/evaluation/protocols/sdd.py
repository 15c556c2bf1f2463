"""The Stanford Drone protocol: 8 steps observed, 12 to predict (0.4 s each), 2,829 tracks, pixels.

Most papers take the minima of ADE and FDE over 20 samples separately (MART, TUTR). The stricter
reading takes both from one sample: PECNet reports the ADE of the sample with the best end point.
"""

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.displacement import (
    Metrics,
    agent_errors,
    best_end,
    separate_minima,
)
from trajformer.evaluation.protocols.benchmark import Benchmark

K = 20


def drone_metrics(forecast: Forecast, batch: SceneBatch) -> Metrics:
    """Metrics [B, S]: separate minima over the 20 most probable modes, ADE at the best FDE.

    Also both errors of the most probable mode. Targets with all future steps count.
    """
    valid = batch.truth.valid
    errors = agent_errors(forecast, batch.truth.position, valid)
    metrics = {}
    for k in (1, K):
        for name, value in separate_minima(errors.most_probable(k)).items():
            metrics[f"{name}_{k}"] = value
    metrics[f"ADE_at_best_FDE_{K}"] = best_end(errors.most_probable(K))["minADE"]
    return metrics, valid.all(-1)


BENCHMARK = Benchmark(
    title="Stanford Drone: 8 steps observed, 12 to predict (0.4 s each), means over tracks, pixels",
    split="test",
    num_targets=2829,
    columns=(f"ADE_{K}", f"FDE_{K}", f"ADE_at_best_FDE_{K}", "ADE_1", "FDE_1"),
    metrics=drone_metrics,
    published=(
        ("PECNet", "- 15.88 9.96 - -", "Mangalam et al. 2020"),
        ("MemoNet", "8.56 12.66 - - -", "Xu et al. 2022"),
        ("MID", "7.61 14.30 - - -", "Gu et al. 2022"),
        ("MID, rerun by others", "9.73 15.32 - - -", "Gu et al. 2022"),
        ("LED", "8.48 11.66 - - -", "Mao et al. 2023"),
        ("Y-net", "7.85 11.85 - - -", "Mangalam et al. 2021"),
        ("TUTR", "7.76 12.69 - - -", "Shi et al. 2023"),
        ("EqMotion", "7.52 12.88 - - -", "Xu et al. 2023"),
        ("MART", "7.43 11.82 - - -", "Lee et al. 2024"),
        ("MoFlow", "7.50 11.96 - - -", "Fu et al. 2025"),
        ("SingularTrajectory", "7.26 12.58 - - -", "Bae et al. 2024"),
        ("PPT", "7.03 10.65 - - -", "Lin et al. 2024"),
    ),
    reference="PPT",
    notes=(
        "Minima: ADE_20 and FDE_20 separately, as MART and TUTR do; ADE_at_best_FDE_20 is the "
        "stricter reading, as PECNet's.",
        "Training data: there is no official validation part; some published models were trained "
        "on tracks and their reversals.",
        "Images: none are used; Y-net uses the image of the place.",
    ),
)
