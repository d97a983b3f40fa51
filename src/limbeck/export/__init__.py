r"""Taking a student elsewhere: ONNX, torch.export or plain NumPy, checked, with a model card."""

from limbeck.export.card import card
from limbeck.export.numpy_predictor import to_numpy
from limbeck.export.portable import TOLERANCE, Portable, of_result, portable, quietly
from limbeck.export.torch_files import to_onnx, to_pt2
from limbeck.export.writing import export

__all__ = [
    "TOLERANCE",
    "Portable",
    "card",
    "export",
    "of_result",
    "portable",
    "quietly",
    "to_numpy",
    "to_onnx",
    "to_pt2",
]
