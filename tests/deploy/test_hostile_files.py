"""Exported files of strangers: no code of them runs, and each ends with one line.

The files are changes of a small program that is exported here.
"""

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from support.processes import run_python
from torch import Tensor, nn

from trajformer import OnlineForecaster
from trajformer.data.sample import BatchConfig
from trajformer.deploy.example_scene import example_scene
from trajformer.deploy.metadata import METADATA_KEY, ExportMetadata
from trajformer.deploy.runtime import ExportedForecaster
from trajformer.errors import TrajformerError
from trajformer.scenes.spec import DataSpec

SPEC = DataSpec(unit="m", period_s=0.1, num_history=10, num_future=12)
METADATA = ExportMetadata(
    model="Model",
    graph="forecast",
    graphs=("forecast",),
    spec=SPEC,
    batch=BatchConfig(),
    inputs={"heading": "", "target_mask": ""},
    outputs={"trajectory": "", "probability": ""},
    agent_types=("UNKNOWN",),
    version="0",
    commit="",
    weights_sha256="0" * 64,
)
MODEL = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"
CONSTANTS = "archive/data/constants/model_constants_config.json"
Entries = dict[str, bytes]
Change = Callable[[Entries], object]
EXECUTED = "executed"  # the file that code of an attack makes
CODE = f"__import__('pathlib').Path('{EXECUTED}').touch()"


class Constant(nn.Module):
    """The same path for all targets."""

    def __init__(self) -> None:
        super().__init__()
        self.path = nn.Parameter(torch.ones(1, SPEC.num_future, 2))

    def forward(self, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        both = torch.cat([tensors["target_mask"].float(), tensors["heading"].sum(2)], 1)
        exists = both[:, : tensors["target_mask"].shape[1]]
        position = exists[..., None, None, None] * self.path
        return position, exists[..., None]


@pytest.fixture(scope="module")
def program() -> bytes:
    """The content of a .pt2 file."""
    tensors = {"heading": torch.zeros(3, 5, 10), "target_mask": torch.ones(3, 4, dtype=torch.bool)}
    dynamic = torch.export.Dim.DYNAMIC
    axes = {"heading": {0: dynamic, 1: dynamic}, "target_mask": {0: dynamic, 1: dynamic}}
    traced = torch.export.export(Constant(), (tensors,), dynamic_shapes=(axes,))
    file = io.BytesIO()
    torch.export.save(traced, file, extra_files={METADATA_KEY: METADATA.to_text()})
    return file.getvalue()


@pytest.fixture(autouse=True)
def no_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(EXECUTED).exists()


def changed(content: bytes, change: Change, compression: int = zipfile.ZIP_STORED) -> Path:
    """A file with changed entries."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    path = Path("model.pt2")
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def reason(path: Path) -> str:
    """The line of the error, without the name of the file."""
    with pytest.raises(TrajformerError, match=f"^{path}: ") as error:
        forecaster = ExportedForecaster(path)
        forecaster.forecast(example_scene(SPEC, 4, 6))
    line = str(error.value).removeprefix(f"{path}: ")
    assert "\n" not in line and len(line) < 400
    return line


# ---- changes of a .pt2 file ----------------------------------------------------------------------


def document(name: str, change: Callable[[Any], object]) -> Change:
    """Change a JSON document."""

    def apply(entries: Entries) -> None:
        content = json.loads(entries[name])
        change(content)
        entries[name] = json.dumps(content).encode()

    return apply


def graph(change: Callable[[Any], object]) -> Change:
    return document(MODEL, lambda content: change(content["graph_module"]["graph"]))


def replaced(old: str, new: str) -> Change:
    """Replace a text in the graph."""

    def apply(entries: Entries) -> None:
        text = entries[MODEL].decode()
        assert old in text
        entries[MODEL] = text.replace(old, json.dumps(new)[1:-1]).encode()

    return apply


class Payload:
    def __reduce__(self) -> Any:
        return eval, (CODE,)


def opaque_constant(entries: Entries) -> None:
    entries["archive/data/constants/opaque_obj_0"] = pickle.dumps(Payload())
    config = {
        "path_name": "opaque_obj_0",
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }
    change = document(CONSTANTS, lambda content: content["config"].update(evil=config))
    change(entries)


def pickled_weight(entries: Entries) -> None:
    file = io.BytesIO()
    torch.save(Payload(), file)
    entries["archive/data/weights/weight_0"] = file.getvalue()
    document(WEIGHTS, lambda content: content["config"]["path"].update(use_pickle=True))(entries)


def pickled_inputs(entries: Entries) -> None:
    file = io.BytesIO()
    torch.save(Payload(), file)
    entries["archive/data/sample_inputs/model.pt"] = file.getvalue()


def target(name: str) -> Change:
    """Another function for the first node."""
    return graph(lambda content: content["nodes"][0].update(target=name))


def first_expression(entries: Entries) -> None:
    text = entries[MODEL].decode()
    _, found, rest = text.partition('"expr_str": "')
    assert found
    old = rest.partition('"')[0]
    entries[MODEL] = text.replace(old, CODE, 1).encode()


def huge_weight(entries: Entries) -> None:
    sizes = [{"as_int": 10**6}, {"as_int": 10**6}, {"as_int": 2}]
    change = {"sizes": sizes, "strides": [{"as_int": 2 * 10**6}, {"as_int": 2}, {"as_int": 1}]}
    document(WEIGHTS, lambda content: content["config"]["path"]["tensor_meta"].update(change))(
        entries
    )


def of_metadata(**changes: Any) -> Change:
    plain = json.loads(METADATA.to_text()) | changes
    return lambda entries: entries.update(
        {f"archive/extra/{METADATA_KEY}": json.dumps(plain).encode()}
    )


OPERATOR = "an operator that graphs of this package do not have: "
HARMFUL = {
    "a pickled constant": (opaque_constant, "may run code"),
    "a pickled weight": (pickled_weight, "a pickled object, which may run code: path"),
    "a compiled library": (
        lambda entries: entries.update({"archive/data/aotinductor/model/a.wrapper.so": b"ELF"}),
        "an unexpected part, which may run code: data/aotinductor",
    ),
    "a function of another module": (target("torch.os.system"), f"{OPERATOR}torch.os.system"),
    "a method of an operator": (target("torch.ops.aten.add.__init__"), OPERATOR),
    "an operator that opens files": (target("torch.ops.aten.from_file.default"), OPERATOR),
    "a function as an argument": (
        graph(
            lambda content: content["nodes"][0]["inputs"].append(
                {"name": "x", "arg": {"as_operator": "torch.os.system"}, "kind": 1}
            )
        ),
        OPERATOR,
    ),
    "code as a size": (first_expression, "a size that may be code"),
    "code as a name": (replaced("tensors_heading", f"x={CODE}"), "a name that may be code"),
    "arguments that import a module": (
        replaced("builtins.dict", "collections.defaultdict"),
        "arguments of the type collections.defaultdict",
    ),
    "another folder": (
        lambda entries: entries.update({"../../a": b""}),
        "an unexpected part: ../../a",
    ),
    "nested lists": (lambda entries: entries.update({MODEL: b"[" * 100_000}), "recursion"),
    "no graph": (lambda entries: entries.pop(MODEL), "the part models/model.json is missing"),
    "a huge weight": (huge_weight, "out of bounds|storage"),
    "no metadata": (of_metadata(format=None), "format None, expected 1"),
    "metadata of other types": (of_metadata(inputs=[1]), "damaged metadata: .*'keys'"),
    "an unknown input": (of_metadata(inputs={"tea": ""}), "has an unknown input tea"),
    "another horizon": (
        of_metadata(spec=replace(SPEC, num_future=5).to_plain()),
        r"num_future|shape \[1, \d+, 1, 12, 2\], expected \[1, \d+, K, 5, 2\]",
    ),
    "a clock without steps": (
        of_metadata(spec=SPEC.to_plain() | {"num_history": 0}),
        "spec.num_history: 0, expected more than 0",
    ),
}


def test_the_unchanged_file_is_read(program: bytes) -> None:
    path = changed(program, lambda entries: None)
    forecast = ExportedForecaster(path).forecast(example_scene(SPEC, 4, 6))
    assert forecast.position.shape[1:] == (1, 12, 2)


@pytest.mark.parametrize("name", HARMFUL)
def test_a_hostile_program_is_one_line(program: bytes, name: str) -> None:
    change, expected = HARMFUL[name]
    line = reason(changed(program, change))
    assert re.search(expected, line), line


@pytest.mark.parametrize(
    "change",
    [
        pickled_inputs,
        document(MODEL, lambda content: content.update(guards_code=[f"{CODE} is None"])),
        graph(lambda content: content["nodes"][0]["metadata"].update(stack_trace=f"\n{CODE}\n")),
    ],
    ids=["example inputs", "guards", "notes"],
)
def test_parts_that_may_be_code_are_not_read(program: bytes, change: Change) -> None:
    ExportedForecaster(changed(program, change)).forecast(example_scene(SPEC, 4, 6))


def test_a_live_forecaster_reads_the_file_in_the_same_way(program: bytes) -> None:
    path = changed(program, opaque_constant)
    with pytest.raises(TrajformerError, match=r"^model\.pt2: .* may run code"):
        OnlineForecaster(path)


# ---- ONNX files ----------------------------------------------------------------------------------


def onnx_file(tensor: TensorProto, metadata: bool = True, domain: str = "") -> Path:
    """A graph that adds a tensor to `heading`."""
    heading = helper.make_tensor_value_info("heading", TensorProto.FLOAT, ["b", "a", 10])
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    node = helper.make_node("Add", ["heading", "w"], ["out"], domain=domain)
    made = helper.make_graph([node], "g", [heading], [output], [tensor])
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("com.evil", 1)]
    model = helper.make_model(made, opset_imports=versions, ir_version=9)
    if metadata:
        model.metadata_props.add(key=METADATA_KEY, value=METADATA.to_text())
    path = Path("model.onnx")
    path.write_bytes(model.SerializeToString())
    return path


def stored(location: str) -> TensorProto:
    """A tensor in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[10])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_hostile_onnx_files_are_one_line() -> None:
    Path("near.bin").write_bytes(bytes(40))
    for location in ("near.bin", "../../../../../../etc/passwd", "/etc/passwd"):
        assert "cannot be read: " in reason(onnx_file(stored(location)))
    small = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    assert "not a registered function/op" in reason(onnx_file(small, domain="com.evil"))
    assert "(no metadata)" in reason(onnx_file(small, metadata=False))
    assert "has 1 outputs, expected 2" in reason(onnx_file(small))
    huge = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[10**11])
    huge.raw_data = bytes(4)
    assert "cannot be read: " in reason(onnx_file(huge))
    path = onnx_file(small)
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read: " in reason(path)


# ---- sizes ---------------------------------------------------------------------------------------

READ = """
import sys
from pathlib import Path
from trajformer.deploy.runtime import ExportedForecaster
from trajformer.errors import TrajformerError
for name in sys.argv[1:]:
    try:
        ExportedForecaster(Path(name))
    except TrajformerError as error:
        print(error)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) // 1000)
"""


def test_large_content_does_not_fill_the_memory(program: bytes) -> None:
    zeros = {"archive/data/weights/weight_0": bytes(1 << 26)}
    path = changed(program, lambda entries: entries.update(zeros), zipfile.ZIP_DEFLATED)
    path.rename("bomb.pt2")
    changed(program, huge_weight).rename("huge.pt2")
    for name in ("sparse.pt2", "sparse.onnx"):
        with open(name, "wb") as file:
            file.truncate(10**12)
    with zipfile.ZipFile("notes.pt2", "w") as archive:
        archive.writestr("notes.txt", "notes")
    names = ("bomb.pt2", "huge.pt2", "sparse.pt2", "sparse.onnx", "notes.pt2")
    done = run_python("-c", READ, *names)
    *lines, megabytes = done.stdout.splitlines()
    assert len(lines) == len(names), done.stderr
    assert "bomb.pt2: cannot be read: compressed" in lines[0]
    assert "1000000000000 bytes, expected at most 500000000" in lines[2]
    assert "an unexpected part: notes.txt" in lines[4]
    assert int(megabytes) < 1000
