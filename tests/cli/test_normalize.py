r"""`limbeck normalize` and `limbeck logz` on real files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb

QUICK = ("--steps", "60", "--chains", "50", "--burn-in", "20")


def content(verb):
    return json.loads(Path(f"limbeck-{verb}/result.json").read_text())


def test_an_rbm_becomes_a_nade(limbeck, here):
    found = limbeck("normalize", "rbm.npz", "--hidden", "5", *QUICK)
    assert found.code == 0, found.err
    student = lb.load("limbeck-normalize").student
    assert (student.inputs, student.hidden) == (6, 5)
    events = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 6)
    assert student.log_prob(events).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_it_is_what_the_library_does(limbeck, here):
    assert limbeck("normalize", "rbm.npz", *QUICK, "--seed", "2").code == 0
    same = lb.normalize(lb.RBM.load("rbm.npz"), steps=60, chains=50, burn_in=20, seed=2).student
    saved = lb.load("limbeck-normalize").student
    for name, tensor in same.state_dict().items():
        assert torch.equal(saved.state_dict()[name], tensor), name


def test_log_z_is_estimated_with_the_student(limbeck, here):
    words = ("normalize", "rbm.npz", *QUICK, "--log-z", "bridge", "--samples", "500")
    assert limbeck(*words, "--no-verdicts").code == 0
    (z,) = content("normalize")["log_z"]
    exact = lb.exact_log_z(lb.RBM.load("rbm.npz"))
    assert abs(z["value"] - exact) < 6 * z["std_error"] or not z["trustworthy"]


def test_an_energy_of_the_users_own(limbeck, here):
    assert limbeck("logz", "models:ising").code == 0
    events = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 5)
    exact = (events[:, :-1] * events[:, 1:]).sum(1).logsumexp(0).item()
    assert content("logz")["log_z"][0]["value"] == pytest.approx(exact, abs=1e-5)
    assert (
        limbeck("normalize", "models:ising", "--student", "made", "--hidden", "8", *QUICK).code == 0
    )


def test_a_saved_student_is_a_proposal(limbeck, here):
    limbeck("normalize", "rbm.npz", *QUICK)
    words = ("logz", "rbm.npz", "--proposal", "limbeck-normalize", "--samples", "500")
    for method in ("bridge", "importance", "ais"):
        more = ("--temperatures", "100") if method == "ais" else ()
        words = (*words, "--method", method, "--burn-in", "50", *more, "--no-verdicts")
        found = limbeck(*words, "--out", method)
        assert found.code == 0, found.err
        (z,) = json.loads((Path(method) / "result.json").read_text())["log_z"]
        assert z["method"] == method
        exact = lb.exact_log_z(lb.RBM.load("rbm.npz"))
        assert abs(z["value"] - exact) < 6 * z["std_error"] or not z["trustworthy"]
        assert not (Path(method) / "student.safetensors").exists()


def test_a_proposal_that_is_distilled_is_kept(limbeck, here):
    words = ("logz", "rbm.npz", "--method", "bridge", "--samples", "200", "--burn-in", "50")
    assert limbeck(*words, "--steps", "40", "--hidden", "7", "--no-verdicts").code == 0
    assert lb.load("limbeck-logz").student.hidden == 7


def test_a_doubtful_estimate_is_exit_code_three(limbeck, here):
    words = ("logz", "rbm.npz", "--quiet")
    assert limbeck(*words, "--require", "std_error=0.1").code == 0
    found = limbeck(*words, "--require", "value>=1000")
    assert found.code == 3
    assert "below the 1000 that was required" in found.err


def test_chains_start_at_data(limbeck, refused, here):
    np.save("bits.npy", np.random.default_rng(0).integers(0, 2, size=(30, 6)))
    np.save("wide.npy", np.zeros((3, 7)))
    np.save("half.npy", np.full((3, 6), 0.5))
    assert limbeck("normalize", "rbm.npz", *QUICK, "--start", "bits.npy", "--out", "a").code == 0
    assert "rows of 6" in refused("normalize", "rbm.npz", *QUICK, "--start", "wide.npy")
    assert "--test" in refused("normalize", "rbm.npz", *QUICK, "--test", "half.npy")


def test_matlab_is_read(limbeck, here):
    from scipy.io import savemat

    rbm = lb.RBM.load("rbm.npz")
    savemat("rbm.mat", {"vishid": rbm.W.detach().numpy(), "visbiases": rbm.a.detach().numpy()[None],
                        "hidbiases": rbm.b.detach().numpy()[None]})  # fmt: skip
    assert limbeck("logz", "rbm.mat").code == 0
    assert content("logz")["log_z"][0]["value"] == pytest.approx(lb.exact_log_z(rbm), rel=1e-6)


def test_what_does_not_fit_is_refused(refused, here):
    for words, said in (
        (("normalize", "none.npz"), "none.npz, which does not exist"),
        (("normalize", "draws.npz"), "which holds"),
        (("normalize", "train.csv"), "a name that ends in .npz"),
        (("normalize", "models:number"), "without"),
        (("normalize", "rbm.npz", "--student", "nad"), "did you mean 'nade'?"),
        (("normalize", "rbm.npz", "--loss", "kll", *QUICK), "kll"),
        (("normalize", "rbm.npz", "--log-z", "maybe"), "--log-z"),
        (("logz", "rbm.npz", "--method", "brigde"), "did you mean 'bridge'?"),
        (("logz", "rbm.npz", "--proposal", "nowhere"), "nowhere, which does not exist"),
        (("logz", "rbm.npz", "--proposal", "."), "without manifest.json"),
        (("logz", "rbm.npz", "--device", "moon"), "device"),
    ):
        assert said in refused(*words)
        assert not Path(f"limbeck-{words[0]}").exists()


def test_a_proposal_that_is_not_used_is_told_of_and_a_wrong_one_refused(limbeck, refused, here):
    quick = ("--steps", "5", "--chains", "10", "--burn-in", "5", "--engine", "eager")
    assert limbeck("normalize", "rbm.npz", *quick, "--no-verdicts", "--out", "right").code == 0
    found = limbeck("logz", "rbm.npz", "--proposal", "right", "--out", "z")
    assert found.code == 0
    assert "--proposal was not used" in found.err
    quiet = limbeck("logz", "rbm.npz", "--proposal", "right", "--quiet", "--out", "z")
    assert "not used" not in quiet.err
    assert "the target's support" in refused("logz", "models:ising", "--proposal", "right")
    words = ("condense", "draws.npz", "--predict", "logistic", "--inputs", "x.npy", "--steps", "3")
    assert limbeck(*words, "--no-verdicts", "--out", "bag").code == 0
    line = refused("logz", "rbm.npz", "--proposal", "bag")
    assert re.match("--proposal: expected .*, got an object of type SampleBag", line)
    line = refused("logz", "rbm.npz", "--proposal", "rigt")
    assert re.match("--proposal: expected .*, got rigt", line)
