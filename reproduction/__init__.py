r"""The source text's experiments again, beside the numbers that it printed."""
