r"""A short distillation, the same each time, that may be cut off."""

import torch

import limbeck as lb

X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))


class CutError(Exception):
    pass


def distilled(callbacks, folder=None, steps=8, cut=None, **options):
    student = lb.MLP(4, 3, generator=torch.Generator().manual_seed(0))
    seen = []

    def metric(student):
        seen.append(1)
        if cut is not None and len(seen) > cut:
            raise CutError  # as if the process had been killed at a look
        return float(len(seen))

    settings = dict(
        steps=steps, every=2, batch_size=5, device="cpu", engine="eager", schedule="constant",
        metrics={"a metric": metric}, checkpoint=folder, checkpoint_every=4,
    ) | options  # fmt: skip
    return lb.distill(lambda x: x[:, :3].softmax(1), student, X, callbacks=callbacks, **settings)
