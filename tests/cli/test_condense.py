r"""`limbeck condense` on real files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb

QUICK = ("--steps", "60", "--components", "3", "--no-verdicts")


def content():
    return json.loads(Path("limbeck-condense/result.json").read_text())


def test_draws_by_name_and_a_function_that_limbeck_has(limbeck, here):
    found = limbeck("condense", "draws.npz", "--predict", "logistic", "--inputs", "x.npy", *QUICK)
    assert found.code == 0, found.err
    assert "average of 400 draws" in found.out
    assert content()["agreement"]["inputs"] == 20
    assert content()["agreement"]["mean_error"] < 0.2


def test_it_is_what_the_library_does(limbeck, here):
    words = ("condense", "draws.npz", "--predict", "models:predict", "--inputs", "x.npy")
    assert limbeck(*words, "--test", "x.npy", *QUICK, "--weighted", "--seed", "4").code == 0
    from models import predict

    same = lb.condense(
        "draws.npz", predict, np.load("x.npy"), components=3, steps=60, weighted=True, seed=4,
        held_out=np.load("x.npy"),
    )  # fmt: skip
    saved = lb.storage.files.read_tensors(Path("limbeck-condense/student.safetensors"))[0]
    for name, tensor in same.student.state_dict().items():
        assert torch.equal(saved[name], tensor), name


def test_a_density_without_inputs(limbeck, here):
    found = limbeck("condense", "draws.npz", "--predict", "models:density", "--components", "1")
    assert found.code == 0, found.err
    assert content()["density"] is True
    student = lb.load("limbeck-condense").student
    assert isinstance(student, lb.GaussianMixture)
    # alpha is standard normal, and so is the noise on it
    assert abs(student.sample(20_000).var().item() - 2) < 0.3


def test_inputs_of_the_users_own(limbeck, here):
    words = ("condense", "draws.npz", "--predict", "logistic", "--inputs", "models:inputs", *QUICK)
    found = limbeck(*words)
    assert found.code == 0, found.err
    assert content()["agreement"]["inputs"] == 1000


def test_outcomes_in_a_table_are_compared(limbeck, here):
    rows = [f"{a},{b},{int(a > 0)}" for a, b in np.load("x.npy")]
    Path("xy.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    words = ("condense", "draws.npz", "--predict", "logistic", "--inputs", "xy.csv", *QUICK)
    assert limbeck(*words, "--label", "y").code == 0
    average, student = content()["agreement"]["log_prob"]
    assert -2 < average < 0
    assert abs(average - student) < 0.1


def test_netcdf_and_zarr_are_read(limbeck, here):
    xarray = pytest.importorskip("xarray")
    held = np.load("draws.npz")
    data = xarray.Dataset(
        {
            "beta": (("chain", "draw", "k"), held["beta"]),
            "alpha": (("chain", "draw"), held["alpha"]),
        }
    )
    data.to_netcdf("draws.nc", group="posterior", engine="h5netcdf")
    words = ("--predict", "logistic", "--inputs", "x.npy", *QUICK, "--json", "--quiet")
    data.to_zarr("draws.zarr", group="posterior", consolidated=False)
    kinds = ("npz", "nc", "zarr")
    found = [limbeck("condense", f"draws.{kind}", *words, "--out", kind) for kind in kinds]
    assert [each.code for each in found] == [0, 0, 0]
    one, two, three = (json.loads(each.out)["agreement"]["kl"] for each in found)
    assert one == pytest.approx(two, rel=1e-3)
    assert three == pytest.approx(two, abs=1e-3)  # variables may come in another order
    assert "posterior: Draws(4 chains of 100" in limbeck("info", "draws.nc").out


@pytest.mark.filterwarnings("default:posterior")
def test_chains_that_disagree_are_exit_code_three(limbeck, here):
    held = dict(np.load("draws.npz"))
    held["alpha"] = held["alpha"] + 10 * np.arange(4)[:, None]
    np.savez("apart.npz", **held)
    words = ("condense", "apart.npz", "--predict", "logistic", "--inputs", "x.npy", *QUICK[:4])
    found = limbeck(*words, "--quiet")
    assert found.code == 3
    assert "limbeck: note: posterior: R̂ of alpha" in found.err
    assert "limbeck: draws: " in found.err
    assert limbeck(*words, "--quiet", "--no-verdicts").code == 0
    assert limbeck(*words, "--quiet", "--no-verdicts", "--require", "r_hat=1.01").code == 3


def test_a_bag_is_exported_as_it_is_made_and_later(limbeck, here):
    runtime = pytest.importorskip("onnxruntime")
    words = ("condense", "draws.npz", "--predict", "logistic", "--inputs", "x.npy", *QUICK)
    assert limbeck(*words, "--export", "first.onnx").code == 0
    assert limbeck("export", "limbeck-condense", "later.onnx").code == 0
    x = np.load("x.npy")
    one, two = (
        runtime.InferenceSession(name, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for name in ("first.onnx", "later.onnx")
    )
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_what_does_not_fit_is_refused(refused, here):
    words = ("condense", "draws.npz", "--inputs", "x.npy", *QUICK)
    Path("wide.csv").write_text("a,b,c\n1,2,3\n")
    for more, said in (
        (("--predict", "logistc"), "did you mean 'logistic'?"),
        (("--predict", "models:number"), "a function of (draw, x)"),
        (("--predict", "logistic", "--test", "wide.csv"), "rows of shape (2,)"),
        (("--predict", "logistic", "--online", "perhaps"), "--online"),
        (("--predict", "logistic", "--var", "gamma"), "gamma"),
        (("--predict", "logistic", "--label", "y"), "without names"),
    ):
        assert said in refused(*words, *more)
    assert "which does not exist" in refused("condense", "none.nc", "--predict", "logistic")
    assert "--test" in refused(
        "condense", "draws.npz", "--predict", "models:density", "--test", "x"
    )
    assert "Missing option '--predict'" in refused("condense", "draws.npz")
