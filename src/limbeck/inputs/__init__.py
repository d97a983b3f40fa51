r"""Where inputs come from: data, noise, neighbours, transformations, samples and their mixtures."""

from limbeck.inputs.base import Inputs
from limbeck.inputs.convert import as_inputs
from limbeck.inputs.dataset import Dataset
from limbeck.inputs.generated import Augment, Function, Noise, Samples
from limbeck.inputs.loader import Loader
from limbeck.inputs.mix import Mix
from limbeck.inputs.munge import Munge
from limbeck.inputs.seek import Seek

__all__ = [
    "Augment",
    "Dataset",
    "Function",
    "Inputs",
    "Loader",
    "Mix",
    "Munge",
    "Noise",
    "Samples",
    "Seek",
    "as_inputs",
]
