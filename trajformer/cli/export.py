"""`trajformer export`: a model as a file for onnxruntime or torch.export."""

from argparse import Namespace
from pathlib import Path

from trajformer.cli.files import check_outputs
from trajformer.cli.parsing import Parser, add_overwrite, new_parser
from trajformer.deploy.metadata import MAP_GRAPH, graph_files
from trajformer.errors import TrajformerError


def parser() -> Parser:
    """CKPT --format pt2|onnx --out FILE."""
    made = new_parser(
        "Export a forecaster for any number of scenes, agents and polylines, and compare its "
        "forecasts with those of the checkpoint. SE2Former has a second file, NAME.map.SUFFIX, "
        "which encodes the map. `predict` and `evaluate` take the result as --checkpoint."
    )
    made.add_argument(
        "checkpoint", type=Path, help="best.ckpt or last.ckpt of a run, or pretrained:NAME"
    )
    made.add_argument(
        "--format",
        choices=("onnx", "pt2"),
        default="onnx",
        help="onnx for onnxruntime in any language, pt2 for torch.export",
    )
    made.add_argument("--out", type=Path, required=True, help="file with the suffix of the format")
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Write the files and print their sizes and the check."""
    from trajformer.deploy.export import export_model
    from trajformer.recipes.checkpoint import load_checkpoint

    args.map = graph_files(args.out, (MAP_GRAPH,))[MAP_GRAPH]
    check_outputs(args, out=args.format, map=args.format)
    if args.out.suffix != f".{args.format}":
        raise TrajformerError(f"{args.out}: the format {args.format} needs .{args.format}")
    model, _ = load_checkpoint(args.checkpoint)
    exported = export_model(model, args.out)
    for name, file in exported.files.items():
        print(f"{file}: graph {name}, {file.stat().st_size / 1e6:.1f} MB")
    difference = f"{exported.max_error_m:.1e} m"
    print(
        f"largest difference from the checkpoint in artificial scenes of other sizes: {difference}"
    )
