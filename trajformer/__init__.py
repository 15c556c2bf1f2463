"""Multi-agent trajectory prediction on one shared attention core.

The public names are imported on first use, so that `import trajformer` is fast. `__init__.pyi` has
their types.
"""

from importlib import import_module

__version__ = "0.2.0"
_MODULES = {
    "Forecast": "data.forecast",
    "OnlineForecaster": "deploy.stream",
    "Scene": "scenes.scene",
    "SceneBatch": "data.batch",
    "SceneStore": "scenes.store",
    "build_model": "recipes.names",
    "collate": "data.batch",
    "evaluate": "evaluation.evaluate",
    "load_checkpoint": "recipes.checkpoint",
    "load_model": "heads.models",
    "plot_scene": "plotting.scene",
    "scene_html": "plotting.page.notebook",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'trajformer' has no attribute '{name}'")
    return getattr(import_module(f"trajformer.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
