r"""Models kept with what they were made with."""

import pytest
import torch

import limbeck as lb
from limbeck.errors import LimbeckError
from reproduction import keeping
from tests.refusals import raises_about

MADE = {"steps": 3, "seed": 0}


def net(seed=0):
    return lb.MLP(4, 3, 2, generator=torch.Generator().manual_seed(seed))


def test_what_is_kept_comes_back(tmp_path):
    keeping.write(tmp_path / "net.safetensors", net(), MADE, 1.5)
    found, seconds = keeping.read(tmp_path / "net.safetensors", "cpu", MADE)
    x = torch.randn(5, 4)
    assert torch.equal(found(x), net()(x))
    assert seconds == 1.5
    assert keeping.digest(found) == keeping.digest(net()) != keeping.digest(net(1))


def test_it_is_made_once(tmp_path):
    made = []

    def make():
        made.append(1)
        return net(), 2.0

    for _ in range(3):
        found, seconds = keeping.kept_or_made(tmp_path / "net.safetensors", "cpu", MADE, make)
        assert (keeping.digest(found), seconds) == (keeping.digest(net()), 2.0)
    assert made == [1]


def test_what_was_made_otherwise_is_refused(tmp_path):
    keeping.write(tmp_path / "net.safetensors", net(), MADE)
    with raises_about(LimbeckError, "steps was 3 and is 4"):
        keeping.read(tmp_path / "net.safetensors", "cpu", MADE | {"steps": 4})
    (tmp_path / "net.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(LimbeckError, match="not a readable safetensors file"):
        keeping.read(tmp_path / "net.safetensors", "cpu", MADE)


def test_an_ensemble_and_a_nade_keep_their_shape_and_order(tmp_path):
    order = [3, 1, 0, 2]
    nade = lb.NADE(4, 5, order, generator=torch.Generator().manual_seed(0))
    ensemble = lb.Ensemble([net(0), net(1)])
    for name, model in (("nade", nade), ("ensemble", ensemble)):
        keeping.write(tmp_path / name, model, {})
        found, _ = keeping.read(tmp_path / name, "cpu")
        x = torch.ones(2, 4)
        assert torch.equal(found(x), model(x))
