r"""Everything that limbeck saves, as writers of two versions: `tests.faults` makes them fail."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from unittest import mock

import numpy as np
import torch

import limbeck as lb
from limbeck import storage
from limbeck.cli.folder import Folder
from limbeck.compression.fidelity.report import fidelity
from limbeck.export import export
from limbeck.models import rbm_files
from limbeck.report import page
from limbeck.storage import checkpoints, folders
from limbeck.training.result import History, Result
from tests.faults import Writer

X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
QUICK = {"steps": 3, "progress": False, "device": "cpu", "engine": "eager"}


def labels(rows):
    p = 1 / (1 + np.exp(-np.asarray(rows)[:, 0]))
    return np.stack([1 - p, p], 1)


def predict(draw, x):
    return lb.Bernoulli(logits=x @ draw)


def net(version):
    return lb.MLP(3, 4 + version, 2, generator=torch.Generator().manual_seed(version))


@functools.cache
def plain(version):
    history = History({"step": [1.0], "loss": [0.5 + version]})
    return Result(net(version), history, 1 + version, "all done", 0.1)


def timeless(result):
    r"""The same result in every process."""
    result.seconds = 0.0
    return result


@functools.cache
def compressed(version):
    return timeless(lb.compress(labels, X, (3 + version,), inputs="data", **QUICK))


@functools.cache
def condensed(version):
    draws = torch.randn(50, 3, generator=torch.Generator().manual_seed(version))
    return timeless(lb.condense(draws, predict, X, components=2 + version, held_out=None, **QUICK))


def content(saved):
    r"""All that is saved of a result, as bytes by name."""
    return saved.to_files()


def result(make, load=lb.load):
    return Writer(lambda folder, v: make(v).save(folder), lambda folder: content(load(folder)))


def save_checkpoint(folder, version):
    checkpoints.prepare(folder)
    before = checkpoints.read(folder)
    tensors = {"w": torch.arange(5.0) + version, "n": torch.tensor(version)}
    about = {"done": version}
    checkpoints.write(folder, 3 + version, tensors, about, before and before.path)


def load_checkpoint(folder):
    found = checkpoints.read(folder)
    if found is None:
        raise lb.CheckpointError("none")
    return found.about, {name: t.tolist() for name, t in found.tensors.items()}


def save_record(folder, version):
    record = {"verb": "logz", "title": f"version {version}"}
    storage.write(folder, record, {"x": np.arange(4) + version})


def load_record(folder):
    record, arrays = storage.read(folder)
    return record, arrays["x"].tolist()


@functools.cache
def record_folder():
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    save_record(folder, 0)
    return folder


def save_page(folder, version):
    saved = storage.read(record_folder())
    saved.content["title"] = f"Result {version}"
    with mock.patch.object(page, "read", return_value=saved):
        page.write(folder)


def load_page(folder):
    return folders.read(folder, "report", ("report.html", "report.md", "report.json")).content


def save_command(folder, version):
    r"""A command with --overwrite, with a checkpoint on the way."""
    options = {"target": "rbm.npz", "steps": version}
    work = Folder(folder, "logz", options, overwrite=True)
    checkpoints.prepare(work.checkpoint / "loop")
    checkpoints.write(work.checkpoint / "loop", 3, {"w": torch.arange(3.0)}, {}, None)
    record = storage.to_files({"verb": "logz", "title": f"version {version}"}, {}, folder)
    work.finish(record | plain(version).to_files())


def load_command(folder):
    config = folders.read(folder, "result", ("config.toml",)).content
    return storage.read(folder).content, content(lb.load(folder)), config


def save_nade(folder, version):
    lb.NADE(4, 3, generator=torch.Generator().manual_seed(version)).save(folder / "n.safetensors")


def load_nade(folder):
    model = lb.NADE.load(folder / "n.safetensors")
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def save_rbm(folder, version):
    rbm = lb.RBM.random(4, 3, generator=torch.Generator().manual_seed(version))
    rbm.save(folder / "rbm.npz")


def load_rbm(folder):
    try:
        return {name: t.tolist() for name, t in rbm_files.read(folder / "rbm.npz").items()}
    except lb.ArgumentError as error:  # the file is the user's argument
        raise lb.CheckpointError(str(error)) from error


def save_fidelity(folder, version):
    p = labels(X[:20])
    fidelity("classification", p, p[::-1] if version else p).save(folder / "fidelity.json")


def load_fidelity(folder):
    return lb.Fidelity.load(folder / "fidelity.json").to_dict()


def save_numpy(folder, version):
    export(net(version), folder, input_shape=3, card=False)


def load_export(folder):
    return folders.read(folder, "export", ("predict.py", "weights.npz")).content


WRITERS = {
    "result": result(plain),
    "compressed": result(compressed),
    "condensed": result(condensed, lambda folder: lb.load(folder, predict=predict)),
    "checkpoint": Writer(save_checkpoint, load_checkpoint),
    "record": Writer(save_record, load_record),
    "command": Writer(save_command, load_command),
    "page": Writer(save_page, load_page),
    "export": Writer(save_numpy, load_export),
    "nade": Writer(save_nade, load_nade),
    "rbm": Writer(save_rbm, load_rbm),
    "fidelity": Writer(save_fidelity, load_fidelity),
}

CHECKED = [name for name in WRITERS if name not in ("rbm", "fidelity")]  # which have a digest
