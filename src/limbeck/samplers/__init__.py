r"""Samplers: chains that advance side by side, one call a sweep."""

from limbeck.samplers.gibbs import sweep

__all__ = ["sweep"]
