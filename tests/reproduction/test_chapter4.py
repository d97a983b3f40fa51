r"""Chapter 4 in small: the whole way from the data to the page, and what it refuses."""

import itertools
import json

import pytest
import torch

from limbeck.models.nade import NADE
from limbeck.models.rbm import RBM
from limbeck.normalization.log_partition import exact_log_z
from reproduction import chapter4, data, output
from reproduction.page import page
from reproduction.thesis import CHAPTER_4

SETTINGS = chapter4.Settings(
    hidden=(4, 8), losses=("kl", "se"), seeds=(0, 1), steps=60, samples=400, burn_in=30
)


@pytest.fixture(scope="module")
def small():
    rbm = RBM.random(12, 5, 0.5, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    test = rbm.advance(rbm.start(600, generator), 100, generator)
    return rbm, data.Images(test[:50], test)


@pytest.fixture(scope="module")
def results(small, tmp_path_factory):
    out = tmp_path_factory.mktemp("chapter-4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "rbm", lambda folder: small[0])
        patch.setattr(data, "binarized", lambda folder: small[1])
        chapter4.run(None, out, SETTINGS, device="cpu", progress=False)
    return out


def test_every_student_is_there_with_its_estimates(small, results):
    found = json.loads((results / "chapter-4.json").read_text())
    cases = [(run["hidden"], run["loss"], run["seed"]) for run in found["runs"]]
    assert sorted(cases) == sorted(itertools.product((4, 8), ("kl", "se"), (0, 1)))
    truth = exact_log_z(small[0])
    for run in found["runs"]:
        bounds = run["bridge"]["bounds"]
        assert bounds["lower"][0] - 5 * bounds["lower"][1] < truth
        assert bounds["upper"][0] + 5 * bounds["upper"][1] > truth
        assert abs(run["bridge"]["value"] - truth) < 6 * run["bridge"]["std_error"]
        assert ("sorted" in run) == (run["seed"] == 0)
        assert run["progress"]["step"] == [60]


def test_the_log_probabilities_are_those_of_the_saved_students(small, results):
    found = json.loads((results / "chapter-4.json").read_text())
    for run in found["runs"]:
        if run["seed"] == 0:
            nade = NADE.load(
                results / "students" / f"nade-{run['hidden']}-{run['loss']}.safetensors"
            )
            log_p = nade.log_prob(small[1].test).double()
            assert run["test"][0] == pytest.approx(log_p.mean().item(), abs=1e-4)
            assert run["sorted"] == pytest.approx(log_p[:500].tolist(), abs=2e-3)


def test_the_page_shows_the_texts_numbers_beside_ours(results, tmp_path):
    found = json.loads((results / "chapter-4.json").read_text())
    for run in found["runs"]:  # as if they were the text's sizes
        run["hidden"] = {4: 250, 8: 500}[run["hidden"]]
    (tmp_path / "chapter-4.json").write_text(json.dumps(found))
    text = page(tmp_path / "chapter-4.json")
    for (hidden, loss), row in CHAPTER_4.items():
        if hidden in (250, 500):
            name = {"kl": "KL divergence", "se": "square error"}[loss]
            for number in (row.test, row.upper, row.lower):
                assert f"| {name} | {hidden} | {number:.2f} |" in text
    ours = [run["test"][0] for run in found["runs"] if (run["hidden"], run["loss"]) == (250, "kl")]
    assert f"| -94.75 | {sum(ours) / 2:.2f} | {min(ours):.2f} | {max(ours):.2f} |" in text


def test_the_table_has_a_row_for_each_student(results):
    found = json.loads((results / "chapter-4.json").read_text())
    assert output.table(found["runs"]).row_count == 8
