"""The tasks of `trajformer train`. To add a task, write its file or folder and add a line here."""

from trajformer.heads.detr.task import TASK as DETECTION
from trajformer.heads.translation.task import TASK as TRANSLATION
from trajformer.heads.vit.task import TASK as CLASSIFICATION
from trajformer.training.forecasting import TASK as FORECASTING

TASKS = {task.recipe.task: task for task in (FORECASTING, TRANSLATION, CLASSIFICATION, DETECTION)}
