r"""Reproduction of the source text's experiments, compared with its published numbers."""
