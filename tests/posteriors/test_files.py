r"""Posteriors in files: netCDF, Zarr, npy and npz; what stays in the file; what cannot be read."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest
import torch

from limbeck.errors import LimbeckError
from limbeck.posteriors.read import as_draws
from tests.posteriors.test_arviz import ALPHA, BETA, NAMED, data_set, data_tree, inference_data
from tests.refusals import raises_about, refused


def check(draws):
    assert repr(draws) == "Draws(4 chains of 8: alpha (3,), beta ())"
    taken = draws.take(range(draws.count))
    np.testing.assert_array_equal(taken["alpha"], ALPHA[:, 5::2].reshape(-1, 3))
    np.testing.assert_array_equal(taken["beta"], BETA[:, 5::2].reshape(-1))


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
@pytest.mark.parametrize("make", [data_set, data_tree, inference_data])
def test_netcdf(tmp_path, engine, make):
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    path = tmp_path / "posterior.nc"
    make().to_netcdf(path, engine=engine)
    check(as_draws(path, burn_in=5, thin=2))
    assert as_draws(str(path), var_names="~alpha").structure.names == ("beta",)
    path.unlink()  # nothing holds it open


@pytest.mark.parametrize("make", [data_set, data_tree])
def test_zarr(tmp_path, make):
    pytest.importorskip("zarr")
    path = tmp_path / "posterior.zarr"
    plain = make().drop_vars("county") if make is data_set else make()
    if make is data_tree:
        plain["posterior"] = data_set().drop_vars("county")
    plain.to_zarr(path, consolidated=False)
    check(as_draws(path, burn_in=5, thin=2))


def test_netcdf_without_a_posterior(tmp_path):
    pytest.importorskip("netCDF4")
    tree = data_tree()
    del tree["posterior"]
    tree.to_netcdf(tmp_path / "other.nc", engine="netcdf4")
    with refused("posterior", "a Dataset of nothing"):
        as_draws(tmp_path / "other.nc")


@pytest.mark.parametrize(("name", "library"), [("p.nc", "xarray"), ("p.zarr", "zarr")])
def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch, name, library):
    if library == "zarr":
        pytest.importorskip("xarray")
    (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, library, None)
    with raises_about(LimbeckError, name, library, "limbeck[posteriors]"):
        as_draws(tmp_path / name)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    path = tmp_path / "posterior.npz"
    save(path, **NAMED)
    check(as_draws(path, burn_in=5, thin=2))
    assert as_draws(path, var_names="beta").structure.names == ("beta",)
    save(path, ALPHA)
    np.testing.assert_array_equal(as_draws(path).flat, ALPHA.reshape(-1, 3))
    save(path, alpha=np.asfortranarray(ALPHA), beta=BETA.astype(">f8"))
    check(as_draws(path, burn_in=5, thin=2))


def test_npy(tmp_path):
    np.save(tmp_path / "posterior.npy", ALPHA)
    np.testing.assert_array_equal(as_draws(tmp_path / "posterior.npy").flat, ALPHA.reshape(-1, 3))
    np.save(tmp_path / "posterior.npy", ALPHA.swapaxes(0, 1))
    turned = as_draws(tmp_path / "posterior.npy", layout="emcee")
    np.testing.assert_array_equal(turned.flat, ALPHA.reshape(-1, 3))


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_large_arrays_stay_in_their_file(tmp_path, kind):
    path, large = tmp_path / f"large.{kind}", np.ones((2, 500, 4000), np.float32)
    (np.save if kind == "npy" else np.savez)(path, large)
    tracemalloc.start()
    try:
        draws = as_draws(path, thin=5)
        assert draws.take([0, 199]).shape == (2, 4000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < large.nbytes / 4  # what is looked at at once, torch's copies beside it
    if kind == "npy":
        whole = as_draws(path)
        assert np.shares_memory(whole.flat.numpy(), whole.parts[""])


def test_what_is_taken_does_not_change_the_file(tmp_path):
    np.save(tmp_path / "posterior.npy", ALPHA)
    draws = as_draws(tmp_path / "posterior.npy")
    draws.flat.zero_()
    np.testing.assert_array_equal(np.load(tmp_path / "posterior.npy"), ALPHA)


def test_python_objects_are_not_read(tmp_path):
    for kind, save in (("npy", np.save), ("npz", np.savez), ("npz", np.savez_compressed)):
        path = tmp_path / f"evil.{kind}"
        save(path, np.array([print, 1], dtype=object), allow_pickle=True)
        with refused("posterior", r"evil\.np.*(objects|cannot be read)"):
            as_draws(path)


@pytest.mark.parametrize("kind", ["nc", "npy", "npz"])
def test_broken_files(tmp_path, kind):
    if kind == "nc":
        pytest.importorskip("netCDF4")
    path = tmp_path / f"broken.{kind}"
    path.write_bytes(b"not what it says")
    with refused("posterior", f"broken.{kind}", expected=f"{kind} file"):
        as_draws(path)


@pytest.mark.parametrize(
    ("names", "received"),
    [
        ("posterior.pkl", "posterior.pkl"),
        ("posterior", ""),
        ("missing.npz", "missing.npz, which does not exist"),
        (["a.npz", "b.npz"], "a.npz,"),
        (["a.csv", "b.npz"], ""),
    ],
)
def test_what_is_no_file(tmp_path, names, received):
    paths = [tmp_path / n for n in names] if isinstance(names, list) else str(tmp_path / names)
    with refused("posterior", received):
        as_draws(paths)


def test_truncated_npz(tmp_path):
    path = tmp_path / "cut.npz"
    np.savez(path, **NAMED)
    path.write_bytes(path.read_bytes()[:-200])
    with refused("posterior", r"cut\.npz, which cannot be read"):
        as_draws(path)


def test_tensors_come_out(tmp_path):
    np.savez(tmp_path / "posterior.npz", **NAMED)
    draws = as_draws(tmp_path / "posterior.npz", dtype=torch.float32).to(dtype=torch.float64)
    assert draws.flat.shape == (80, 4)
    assert draws.flat.dtype == torch.float64
