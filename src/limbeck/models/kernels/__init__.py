r"""Kernels: the inner loops of models, in plain torch, in C++ and for GPUs."""
