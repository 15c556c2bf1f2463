"""Package metadata; tool settings are in pyproject.toml, tested versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "trajformer/__init__.py").read_text())[1]
LIBRARY = "trajformer.recipes.library"  # configs/ inside a wheel, see trajformer/recipes/names.py

setup(
    name="trajformer",
    version=VERSION,
    description="Multi-agent trajectory prediction on one shared attention core",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["trajformer*", "data_prep*"]), LIBRARY],
    package_dir={LIBRARY: "configs"},
    package_data={
        "trajformer": ["py.typed", "*.pyi"],
        "trajformer.plotting.page": ["source/*"],
        "trajformer.plotting.report": ["source/*"],
        "trajformer.recipes": [
            "weights/*.yaml",
            "weights/*.safetensors",
            "weights/*/*.safetensors",
        ],
        LIBRARY: ["*.yaml", "*/*.yaml"],
    },
    entry_points={"console_scripts": ["trajformer = trajformer.cli:main"]},
    install_requires=[
        "torch>=2.6",
        "lightning>=2.6.6",
        "torchmetrics>=1.4",
        "jsonargparse[signatures]>=4.40",
        "numpy>=1.26",
        "pandas>=2.1",
        "scipy>=1.11",
        "pyarrow>=15",
        "safetensors>=0.4",
        "msgspec>=0.19",
        "matplotlib>=3.8",
        "torch-geometric>=2.5",
        "tqdm>=4.66",
        "filelock>=3.30",
    ],
    extras_require={
        "logs": ["tensorboard>=2.15"],
        "argoverse": ["av2>=0.3"],
        "ray": ["ray>=2.30"],
        "mcap": ["mcap>=1.2"],
        "video": ["av>=12"],
        "runtime": ["onnxruntime>=1.20"],
        "export": ["onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"],
        "heads": [
            "sentencepiece>=0.2",
            "sacrebleu>=2.4",
            "pycocotools>=2.0.7",
            "scikit-learn>=1.4",
            "pillow>=10",
        ],
        "docs": [
            "mkdocs-material>=9.6",
            "mkdocstrings[python]>=0.27",
            "nbclient>=0.10",
            "nbconvert>=7.16",
            "ipykernel>=6.29",
        ],
        "dev": [
            "pytest>=8",
            "pytest-xdist",
            "playwright>=1.50",
            "hypothesis",
            "ruff",
            "mypy",
            "pandas-stubs",
            "scipy-stubs",
            "types-tqdm",
            "types-PyYAML",
            "transformers>=4.50",
            "shapely>=2",
            "protobuf>=4",
            "onnx>=1.17",
            "onnxscript>=0.5",
            "onnxruntime>=1.20",
        ],
    },
)
