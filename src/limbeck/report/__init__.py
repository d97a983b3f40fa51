r"""Pictures of saved results; nothing is trained or estimated to draw them."""
