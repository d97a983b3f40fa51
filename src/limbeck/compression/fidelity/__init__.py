r"""How faithful a student is, and what it costs."""
