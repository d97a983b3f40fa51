r"""Training a student: one loop, its settings, its engines and its result."""
