r"""The core: batch, evaluation, loss, update, loop, stopping, checkpoint."""
