r"""Predictive distributions: posteriors condensed into what they predict, and baselines for it."""
