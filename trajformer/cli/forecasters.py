"""Options and checks that commands with a forecaster share."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from trajformer.cli.parsing import Parser, add_accelerator, add_overwrite
from trajformer.scenes.manifest import MANIFEST
from trajformer.scenes.spec import warn

if TYPE_CHECKING:
    from trajformer.models.forecaster import Predictor
    from trajformer.scenes.store import SceneStore

# repeated from recipes.checkpoint, which imports torch
UNTRAINED = ("constant_velocity", "constant_velocity_sampled")
CHECKPOINT_HELP = "best.ckpt or last.ckpt of a run, or pretrained:NAME"
MODEL_HELP = (
    "a model without training: constant velocity, or 20 directions around it drawn for each agent"
)


def add_forecaster(parser: Parser) -> None:
    """Add the options of a command that forecasts the scenes of a store with one model."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--checkpoint", type=Path, help=CHECKPOINT_HELP)
    model.add_argument("--model", choices=UNTRAINED, help=MODEL_HELP)
    parser.add_argument(
        "--store", type=Path, required=True, help="folder made by `trajformer preprocess`"
    )
    parser.add_argument("--split", default="val", help="split of the store")
    add_batch_size(parser)
    parser.add_argument(
        "--agents",
        choices=("scored", "focal", "all"),
        default="scored",
        help="agents to forecast: those that the data set scores, its focal agent, or every agent "
        "seen in the last observed step",
    )
    parser.add_argument(
        "--joint",
        action="store_true",
        help="forecast joint futures of the whole scene (models with worlds)",
    )
    add_accelerator(parser)
    add_overwrite(parser)


def add_batch_size(parser: Parser) -> None:
    """Add the option --batch-size."""
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="scenes per batch")


def load_forecaster(args: Namespace) -> tuple["SceneStore", "Predictor", str]:
    """The scenes, the model and its name, by the options of `add_forecaster`."""
    from trajformer.recipes.checkpoint import load_predictor, pick_device
    from trajformer.scenes.store import SceneStore

    source = args.checkpoint or args.model
    device = pick_device(args.accelerator)
    predictor = load_predictor(source, device, args.agents, args.joint)
    warn_if_interrupted(args.store)
    return SceneStore(args.store, args.split), predictor, str(source)


def warn_if_interrupted(store: Path) -> None:
    """Warn if the preparation of a store did not end: scenes may be missing."""
    if any(store.glob("*/*.arrow")) and not (store / MANIFEST).exists():
        reason = f"has no {MANIFEST}: its preparation did not end, so scenes may be missing"
        warn(f"{store}: {reason}; run `trajformer preprocess`")
