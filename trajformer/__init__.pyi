from trajformer.data.batch import SceneBatch as SceneBatch
from trajformer.data.batch import collate as collate
from trajformer.data.forecast import Forecast as Forecast
from trajformer.deploy.stream import OnlineForecaster as OnlineForecaster
from trajformer.evaluation.evaluate import evaluate as evaluate
from trajformer.heads.models import load_model as load_model
from trajformer.plotting.page.notebook import scene_html as scene_html
from trajformer.plotting.scene import plot_scene as plot_scene
from trajformer.recipes.checkpoint import load_checkpoint as load_checkpoint
from trajformer.recipes.names import build_model as build_model
from trajformer.scenes.scene import Scene as Scene
from trajformer.scenes.store import SceneStore as SceneStore

__version__: str
__all__: list[str]
