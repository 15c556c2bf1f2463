"""The import analysis of tools/draw_architecture.py, which is not part of an installed package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "tools" / "draw_architecture.py")
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module  # dataclasses look up their module
_spec.loader.exec_module(_module)

ImportGraph = _module.ImportGraph
imported_modules = _module.imported_modules
source_files = _module.source_files
