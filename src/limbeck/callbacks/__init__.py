r"""Where a run's figures can go as they come: a CSV file, TensorBoard, MLflow."""

from limbeck.callbacks.csv_file import CSVLogger
from limbeck.callbacks.mlflow_store import MLflow
from limbeck.callbacks.tensorboard_events import TensorBoard
from limbeck.core.callback import Callback

__all__ = ["CSVLogger", "Callback", "MLflow", "TensorBoard"]
