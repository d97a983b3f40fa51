r"""Dark knowledge, in small: the posterior, the chains, both parts, and the page."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import limbeck as lb
from tests.refusals import raises_about

FOLDER = Path(__file__).parents[2] / "experiments"
TOY = {"chains": 20, "sweeps": 1, "reference": 100, "plain_steps": 20, "steps": 5, "side": 7}
DIGITS = {"hidden": (4,), "draws": 40, "plain_steps": 20, "steps": 20, "batch_size": 20}


@pytest.fixture(scope="module")
def study():
    before = list(sys.path)
    sys.path[:0] = [str(FOLDER)]
    spec = importlib.util.spec_from_file_location("dark_knowledge", FOLDER / "dark_knowledge.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def net(study):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=generator)
    y = torch.randint(4, (30,), generator=generator)
    return study.toy.Net((3, 5, 4), x, y, 0.7)


class Walk:
    r"""A stand-in for a chain: weights that move about their start."""

    def __init__(self, net, seed):
        self.w, self.generator = net.start(10, seed), torch.Generator().manual_seed(seed)

    def step(self):
        return self.w + 0.1 * torch.randn(self.w.shape, generator=self.generator)


def test_the_posterior_is_that_of_its_net(net):
    w = net.start(6, 1)
    for row, found in zip(w, net.log_posterior(w), strict=True):
        likelihood = net.predict(row, net.x).log_prob(net.y).sum()
        prior = torch.distributions.Normal(0.0, 0.7)
        constant = prior.log_prob(torch.zeros(())) * net.dim
        expected = likelihood + prior.log_prob(row).sum() - constant
        torch.testing.assert_close(found, expected)


def test_some_rows_estimate_all_of_the_posterior(net):
    w = net.start(2, 1)
    halves = torch.arange(30).reshape(2, 1, 15).expand(2, 2, 15)
    estimates = torch.stack([net.log_posterior(w, rows) for rows in halves])
    torch.testing.assert_close(estimates.mean(0), net.log_posterior(w))


def test_an_average_is_the_mean_of_single_predictions(net):
    draws, x = net.start(250, 2), net.x[:7]  # in more than one block
    expected = torch.stack([net.predict(w, x).mean for w in draws]).double().mean(0)
    torch.testing.assert_close(net.average(draws, x), expected, rtol=1e-5, atol=1e-6)


def test_the_plain_net_is_at_a_maximum(study, net):
    w = study.toy.plain(net, 1000, 0).requires_grad_()
    (slope,) = torch.autograd.grad(net.log_posterior(w).sum(), w)
    (before,) = torch.autograd.grad(
        net.log_posterior(start := net.start(1, 0).requires_grad_()).sum(), start
    )
    assert slope.norm() < 0.02 * before.norm()


def test_divergence_is_kl(study):
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 9, 4, generator=generator).double().softmax(2)
    expected = torch.distributions.kl_divergence(
        *(torch.distributions.Categorical(probs) for probs in (p, q))
    )
    assert study.toy.divergence(p, q) == pytest.approx(expected.mean().item())
    assert study.toy.divergence(p, p) == 0


@pytest.fixture(scope="module")
def toy(study):
    r"""The toy problem as it runs where no other library is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study.toy, "installed", lambda name: False)
        return study.toy.run(1, TOY, progress=False)


@pytest.mark.slow
def test_the_toy_problem_by_slice_sampling(toy):
    assert toy["reference"] == toy["chain"] == "slice sampling"
    kl = {row["name"]: row["kl"]["mean"] for row in toy["rows"]}
    assert kl["100 draws"] < kl["10 draws"]
    assert all(value >= 0 for value in kl.values())
    parameters = {row["name"]: row["parameters"] for row in toy["rows"]}
    assert parameters["bag of 10"] == 10 * parameters["plain net"] == 520
    assert len(toy["surfaces"]["bag of 10"].split()) == 49


@pytest.fixture(scope="module")
def digits(study):
    pytest.importorskip("sklearn")
    return study.digits.run(2, None, DIGITS, progress=False, make_chain=Walk)


def test_digits_are_measured_on_images_that_nobody_saw(study, digits):
    x, _, test, _ = study.digits.split(0)
    assert (len(x), len(test)) == (1347, 450)
    assert not (test[:, None] == x[None, :50]).all(2).any()
    rows = {row["name"]: row for row in digits["rows"]}
    assert rows["chain average"]["kl"]["values"] == [0, 0]
    assert rows["online student"]["parameters"] == 64 * 4 + 4 + 4 * 10 + 10
    assert rows["chain average"]["parameters"] == 40 * rows["plain net"]["parameters"]
    assert all(0 <= value <= 100 for value in rows["online student"]["error"]["values"])
    values = rows["online student"]["log_prob"]
    assert values["mean"] == pytest.approx(sum(values["values"]) / 2)


def test_scores_are_errors_and_log_probabilities(study):
    p = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.7, 0.05]], dtype=torch.float64)
    found = study.digits.scored(p, torch.tensor([0, 0]))
    assert found["error"] == 50.0
    assert found["log_prob"] == pytest.approx(torch.tensor([0.5, 0.25]).log().mean().item())


def test_digits_without_a_sampler_say_what_to_install(study, monkeypatch):
    monkeypatch.setattr(study.digits, "installed", lambda name: False)
    with raises_about(lb.LimbeckError, "posteriors"):
        study.digits.run(1)


@pytest.mark.slow
def test_files_tables_and_the_page(study, toy, digits, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(study.toy, "run", lambda *_: toy)
    monkeypatch.setattr(study.digits, "run", lambda *_: digits)
    monkeypatch.setattr(study.torch, "set_num_threads", lambda count: None)
    found = study.main(["--out", str(tmp_path)])
    assert json.loads((tmp_path / "dark-knowledge.json").read_text()) == found
    again = study.main(["--part", "digits", "--out", str(tmp_path)])
    assert again["toy"] == found["toy"]  # what was not asked for stays
    assert "student 2-10-10-2" in capsys.readouterr().out
    page = sys.modules["dark_knowledge_page"]
    text = page.section(found)
    assert text.startswith("## Bayesian dark knowledge\n")
    row = next(row for row in found["toy"]["rows"] if row["name"] == "bag of 10")
    assert f"| bag of 10 | 520 | {row['kl']['mean']:.4f} |" in text
    assert "| 0.031 |" in text
    said = page.picture(found, tmp_path / "pictures")
    assert list(said) == [path.name for path in (tmp_path / "pictures").iterdir()]
    assert f"bag of 10 {row['kl']['mean']:.4f}" in said["surfaces.png"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sgld_of_posteriors_has_the_moments_of_a_normal_distribution(study):
    pytest.importorskip("posteriors")
    from running_chain import Langevin

    scale = torch.tensor([0.5, 2.0])
    chain = Langevin(
        lambda w, _: -(w / scale).square().sum(1) / 2, lambda _: None, torch.zeros(2000, 2), 0.02,
        thin=50, seed=1,
    )  # fmt: skip
    state = torch.get_rng_state()
    for _ in range(20):
        draws = chain.step()
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone
    # a step of size e makes the variance v / (1 − e / 2v)
    expected = scale.square() / (1 - 0.01 / scale.square())
    assert (draws.mean(0).abs() / scale).max() < 4 / 2000**0.5
    assert (draws.var(0) / expected - 1).abs().max() < 4 * (2 / 2000) ** 0.5


def test_nuts_of_blackjax_has_the_moments_of_a_normal_distribution(study):
    pytest.importorskip("blackjax")
    from running_chain import Hamiltonian

    chain = Hamiltonian(lambda w: -((w / 2) ** 2).sum() / 2, torch.zeros(500, 2).numpy(), 200)
    draws = torch.cat([chain.step() for _ in range(5)])
    assert draws.mean(0).abs().max() < 2 * 4 / 500**0.5
    assert (draws.var(0) / 4 - 1).abs().max() < 4 * (2 / 500) ** 0.5
