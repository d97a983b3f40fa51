r"""Teachers of every kind, as predictors on arrays or frames."""
