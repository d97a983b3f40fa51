r"""Sources of inputs: data, noise, neighbours, transformations, samples and their mixtures."""

from limbeck.inputs.base import Inputs
from limbeck.inputs.combined import Augment, Mix, Munge, Seek
from limbeck.inputs.dataset import Dataset, Loader, as_inputs
from limbeck.inputs.generated import Function, Noise, Samples

__all__ = [
    "Augment", "Dataset", "Function", "Inputs", "Loader", "Mix", "Munge", "Noise", "Samples",
    "Seek", "as_inputs",
]  # fmt: skip
