r"""The contract of input sources, which lives in the core."""

from limbeck.core.inputs import Inputs

__all__ = ["Inputs"]
