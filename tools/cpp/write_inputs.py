"""Write the inputs of an exported model for one scene, for `forecast.cpp`.

    python tools/cpp/write_inputs.py MODEL.onnx STORE SPLIT INDEX INPUTS.bin

Every tensor is a line `NAME TYPE SIZE SIZE ...`, then its bytes in the order of the machine.
"""

import sys
from pathlib import Path

import numpy as np

from trajformer.deploy.runtime import ExportedForecaster
from trajformer.scenes.store import SceneStore


def write_inputs(arrays: dict[str, np.ndarray], out: Path) -> None:
    """Write arrays by name."""
    with out.open("wb") as file:
        for name, array in arrays.items():
            sizes = " ".join(str(size) for size in array.shape)
            file.write(f"{name} {array.dtype} {sizes}\n".encode())
            file.write(np.ascontiguousarray(array).tobytes())


def main(words: list[str]) -> None:
    """Write the inputs of all agents of a scene."""
    model, store, split, index, out = words
    scene = SceneStore(Path(store), split)[int(index)]
    write_inputs(ExportedForecaster(model).inputs(scene), Path(out))


if __name__ == "__main__":
    main(sys.argv[1:])
