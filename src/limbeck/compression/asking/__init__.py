r"""Asking a teacher: once for each input, in batches, with its answers kept."""
