r"""Teachers of every kind, and how they are queried."""
