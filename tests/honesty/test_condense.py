r"""Condensed posteriors: the student at new inputs, and what pseudo-draws cannot tell.

A bag of pseudo-draws can match the posterior average at the rows that it was trained on, and be
far off at any other: so some rows are held out, both numbers are shown, and a clear gap is warned
of. And a bag predicts each input by itself: joint samples at several inputs and parameters read
off its pseudo-draws are warned of, once for each bag.
"""

import json
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck import storage
from limbeck.report import page
from limbeck.report.condensation import condensed
from tests.refusals import refused

GENERATOR = torch.Generator().manual_seed(0)
WIDE = torch.randn(300, 12, generator=GENERATOR)
ROWS = torch.randn(40, 12, generator=GENERATOR)
NARROW, PLANE = WIDE[:, :2].clone(), torch.randn(60, 2, generator=GENERATOR)
OPTIONS = {"progress": False, "device": "cpu"}
FEW = OPTIONS | {"steps": 20}


def logistic(draw, x):
    return lb.Bernoulli(logits=x @ draw)


def linear(draw, x):
    return lb.Normal(x @ draw, torch.ones(()))


@pytest.fixture(scope="module")
def overfit():
    r"""A bag that fits 32 rows of 12 numbers far better than new ones, and its warnings."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        result = lb.condense(WIDE, logistic, ROWS, **OPTIONS, steps=400, lr=0.05)
    return result, [each for each in given if each.category is lb.HeldOutWarning]


def small(posterior=NARROW, predict=logistic, inputs=PLANE, **options):
    return lb.condense(posterior, predict, inputs, **FEW | options)


def test_a_bag_that_fits_its_rows_and_no_others_is_warned_of_once(overfit):
    result, given = overfit
    assert len(given) == 1
    assert issubclass(lb.HeldOutWarning, UserWarning)
    assert given[0].filename == __file__
    found = result.new_inputs
    assert found.state == "doubtful"
    assert found.held_out.mean > 10 * found.training.mean
    assert found.held_out.max >= found.held_out.mean > 0
    assert (found.training.inputs, found.held_out.inputs) == (32, 8)


def test_the_numbers_are_of_the_returned_student_at_rows_it_was_not_trained_on(overfit):
    from limbeck.condensation.held_out import split_rows

    result, _ = overfit
    train, held = split_rows(ROWS, None, 0)
    for index, measured in (
        (train, result.new_inputs.training),
        (held, result.new_inputs.held_out),
    ):
        assert measured.mean == pytest.approx(result.report(ROWS[index]).kl, rel=0.01, abs=1e-6)


def test_both_divergences_are_in_everything_that_tells_of_the_result(overfit, tmp_path):
    result, _ = overfit
    shown = [str(result), str(result.report(ROWS))]
    result.save(tmp_path / "student")
    again = lb.load(tmp_path / "student", predict=logistic)
    assert again.new_inputs == result.new_inputs
    content, arrays = condensed(result, x=ROWS)
    assert not next(v for v in content["verdicts"] if v["name"] == "new inputs")["held"]
    folder = storage.write(tmp_path / "result", {"verb": "condense", **content}, arrays)
    saved = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert saved["new_inputs"]["held_out"]["mean"] == result.new_inputs.held_out.mean
    page.write(folder)
    shown += [str(again), (folder / "report.md").read_text("utf-8")]
    shown.append((folder / "report.html").read_text("utf-8"))
    from limbeck.cli.results import describe_path

    for path in (tmp_path / "student", folder):
        shown.append("\n".join(map(str, describe_path(path).values())))
    for text in (each.replace("−", "-") for each in shown):
        for each in (result.new_inputs.training, result.new_inputs.held_out):
            assert f"{each.mean:.2g}" in text
            assert f"{each.max:.2g}" in text
        assert "clearly worse" in text.replace("\n", " ") or "doubtful" in text
    assert "clearly worse" in " ".join(result.portable().about["doubts"])


def test_a_student_that_is_as_near_at_new_rows_is_not_warned_of():
    found = small(steps=200).new_inputs  # sixty rows of two numbers, a bag of ten
    assert found.state == "trustworthy"
    assert found.kind == "held-out rows"
    assert (found.training.inputs, found.held_out.inputs) == (48, 12)


@pytest.mark.parametrize("fraction", [0, 0.0])
def test_without_held_out_rows_the_result_says_that_it_is_unchecked(fraction):
    result = small(held_out_fraction=fraction)
    assert result.new_inputs.state == "unchecked"
    assert "unchecked at new inputs" in str(result)
    content, _ = condensed(result, x=PLANE)
    assert any("Unchecked at new inputs" in note for note in content["notes"])


def test_few_rows_are_all_trained_on_and_the_result_says_so():
    found = small(inputs=PLANE[:10]).new_inputs
    assert found.state == "unchecked"
    assert "fewer than 20" in found.reason
    repeated = small(inputs=PLANE[:10].repeat(30, 1)).new_inputs
    assert repeated.state == "unchecked"  # they are no more rows for being repeated


def test_equal_rows_are_never_on_both_sides():
    from limbeck.condensation.held_out import split_rows

    x = torch.randn(50, 3, generator=GENERATOR).repeat(4, 1)
    for fraction in (None, 0.1, 0.5):
        train, held = split_rows({"a": x[:, 0], "b": x[:, 1:]}, fraction, 3)
        assert len(train) + len(held) == len(x)
        assert len(held)
        assert not (x[train][:, None] == x[held][None]).all(-1).any()
    signed = torch.tensor([[0.0], [-0.0]]).repeat(20, 1) + torch.arange(40)[:, None] // 2 * 0.0
    assert split_rows(signed, None, 0) is None  # 0 and −0 are one row


def test_a_row_that_most_rows_equal_is_trained_on():
    from limbeck.condensation.held_out import split_rows

    x = torch.cat([torch.zeros(500, 2), torch.randn(40, 2, generator=GENERATOR)])
    for seed in range(20):
        _, held = split_rows(x, None, seed)
        assert len(held) == 8
        assert (held >= 500).all()


def test_the_user_chooses_the_fraction_or_gives_inputs():
    half = small(held_out_fraction=0.5).new_inputs
    assert (half.training.inputs, half.held_out.inputs) == (30, 30)
    others = torch.randn(25, 2, generator=GENERATOR)
    for given in (others, others.double().numpy()):
        own = small(held_out=given)
        assert own.new_inputs.training.inputs == 60  # all rows are trained on
        assert own.new_inputs.held_out.inputs == 25
        assert len(own.history["held_out"])
    overlap = small(inputs=PLANE[:50], held_out=PLANE[40:]).new_inputs
    assert overlap.held_out.inputs == 10
    assert "10 more were left out" in overlap.reason
    assert small(held_out=PLANE).new_inputs.state == "unchecked"
    for wrong in (1.0, -0.1, 1.5, "half", None):
        with refused("held_out_fraction", repr(wrong)):
            small(held_out_fraction=wrong)
    for wrong in (0.2, "auto", 1):
        with refused("held_out", repr(wrong), expected="held_out_fraction"):
            small(held_out=wrong)
    with refused("held_out", "Noise inputs"):
        small(held_out=lb.inputs.Noise(2))
    with refused("held_out_fraction", "0.5"):
        small(held_out=others, held_out_fraction=0.5)


def test_rows_that_decide_when_to_stop_are_told():
    assert "decided when to stop" in small(patience=5).new_inputs.reason


@pytest.mark.slow
def test_the_split_is_the_same_in_every_process():
    script = """
import torch
from limbeck.condensation.held_out import split_rows
print(split_rows(torch.arange(80.0).reshape(40, 2), None, 0)[1].tolist())
"""
    told = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]


def test_a_batch_of_all_rows_becomes_one_of_all_training_rows():
    assert small(batch_size=60).new_inputs.training.inputs == 48
    with refused("batch_size", "^61$"):
        small(batch_size=61)


@pytest.mark.parametrize("predict", [logistic, linear])
def test_sources_that_do_not_end_are_measured_at_a_fresh_draw(predict):
    for source in (lb.inputs.Noise(2), lambda n: torch.randn(n, 2)):
        found = small(predict=predict, inputs=source).new_inputs
        assert found.state == "trustworthy"
        assert found.kind == "fresh inputs"
        assert found.held_out.inputs > 900
    pooled = small(inputs=lb.inputs.Noise(2), pool=50, steps=5).new_inputs
    assert pooled.training is None or pooled.training.inputs == 50


@pytest.mark.parametrize("options", [{"predict": linear}, {"pool": 3000, "steps": 300}])
def test_sources_that_give_the_same_rows_again_are_not_taken_for_new(options):
    table = lambda n: PLANE[torch.randint(len(PLANE), (n,))]  # noqa: E731
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(PLANE), batch_size=16)
    for source, own in ((table, {"batch_size": 10}), (loader, {})):
        found = small(inputs=source, **own, **options).new_inputs
        assert found.state == "unchecked"


def test_rows_of_a_mixture_are_unchecked_unless_inputs_are_given():
    mixed = lb.inputs.Mix([PLANE, lb.inputs.Noise(2)])
    found = small(inputs=mixed, batch_size=20).new_inputs
    assert found.state == "unchecked"
    assert "held_out=" in found.reason
    given = small(inputs=mixed, batch_size=20, held_out=torch.randn(30, 2)).new_inputs
    assert given.held_out.inputs == 30


@pytest.mark.parametrize("predict", [logistic, linear])
def test_streams_are_checked_without_further_draws(predict):
    batches = [NARROW[10 * k : 10 * k + 10] for k in range(30)]
    result = small(iter(batches), predict, steps=10, batch_size=10)
    assert result.new_inputs.held_out.inputs == 12
    assert result.posterior.used <= 300
    ended = small(iter(batches), predict, steps=500, batch_size=10)
    assert "ended" in ended.stop_reason
    assert ended.new_inputs.held_out.inputs == 12


def test_predictions_computed_elsewhere_are_held_out_with_their_rows():
    p = (PLANE @ NARROW.T).sigmoid().T
    for predictions in (p, lb.Normal(p, torch.ones_like(p))):
        result = lb.condense(predictions=predictions, inputs=PLANE, **FEW)
        assert result.new_inputs.held_out.inputs == 12
    with refused("held_out", "held-out inputs, of which no"):
        lb.condense(predictions=p, inputs=PLANE, held_out=PLANE, **FEW)


def test_densities_without_inputs_have_nothing_to_hold_out():
    found = lb.condense(
        NARROW, lambda draw: lb.Normal(draw[0], torch.ones(())), components=2, **FEW
    )
    assert found.new_inputs is None
    assert "new inputs" not in str(found)


def test_a_failure_of_the_check_does_not_lose_the_student():
    calls = []

    def inputs(n):
        calls.append(n)
        if n == 1000:
            raise RuntimeError("no more")
        return torch.randn(n, 2)

    found = small(inputs=inputs, predict=linear, batch_size=20).new_inputs
    assert found.state == "unchecked"
    assert "no more" in found.reason


def test_the_rule_needs_a_gap_that_is_large_and_no_chance():
    from limbeck.condensation.held_out import NewInputs, judge

    values = torch.rand(200, generator=GENERATOR).double()

    def state(training, new, noise=0.0):
        return judge(training, new, noise, "rows", 0).state

    assert state(values[:100], values[100:]) == "trustworthy"
    assert state(1e-7 * values[:100], 1e-5 * values[100:]) == "trustworthy"  # too small to matter
    assert state(values[:100], 1.5 * values[100:]) == "trustworthy"
    assert state(1e-3 * values[:100], 1e-2 * values[100:], noise=0.1) == "trustworthy"
    with pytest.warns(lb.HeldOutWarning):
        assert state(1e-3 * values[:100], 1e-2 * values[100:]) == "doubtful"
    with pytest.warns(lb.HeldOutWarning):
        assert state(values[:100], torch.tensor([float("nan"), 1.0]).double()) == "doubtful"
    assert state(values[:4], 100 * values[4:6]) == "unchecked"  # too few to tell
    assert NewInputs.from_record(None).state == "unchecked"


def test_false_alarms_are_rare():
    from limbeck.condensation.held_out import judge

    # Heavy tails, as divergences have them: rows of one kind, divided at random.
    alarms = 0
    for seed in range(200):
        values = np.random.default_rng(seed).lognormal(-5, 2, 60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            split = torch.tensor(values).split([48, 12])
            alarms += judge(*split, 0.0, "rows", seed).state == "doubtful"
    assert alarms <= 6


def test_joint_samples_at_several_inputs_are_warned_of_once_for_each_bag():
    for predict in (logistic, linear):
        result = small(predict=predict)
        bag = result.student
        bag(PLANE[:1]).sample((5,))  # one input: nothing to warn of
        assert bag(PLANE).mean.shape == (60,)
        with pytest.warns(lb.PseudoDrawWarning):
            assert bag(PLANE).sample((3,)).shape == (3, 60)
        bag(PLANE).sample()
        result.predict(PLANE).sample()
        again = small(predict=predict)
        with pytest.warns(lb.PseudoDrawWarning):
            again.predict(PLANE).sample()


def test_a_net_as_a_student_is_warned_of_as_well():
    result = small(student=lb.MLP(2, 4, 1))
    with pytest.warns(lb.PseudoDrawWarning):
        result.predict(PLANE).sample()
    result.predict(PLANE).sample()


def test_parameters_read_off_trained_pseudo_draws_are_warned_of_once_for_each_bag(tmp_path):
    result = small()
    with pytest.warns(lb.PseudoDrawWarning):
        assert result.student.draws.shape == (10, 2)
    assert result.student.flat.shape == (10, 2)
    result.save(tmp_path)
    again = lb.load(tmp_path, predict=logistic).student
    with pytest.warns(lb.PseudoDrawWarning):
        assert again.flat.shape == (10, 2)
    fresh = lb.SampleBag(logistic, NARROW, 5)  # still draws of the posterior
    assert fresh.draws.shape == (5, 2)


def test_what_limbeck_does_itself_warns_of_nothing(tmp_path):
    result = small(predict=lb.condensation.models.logistic())
    result.save(tmp_path / "student")
    result.report(PLANE)
    condensed(result, x=PLANE)
    result.export(tmp_path / "numpy")
    cards = [path.read_text("utf-8") for path in tmp_path.rglob("*.md")]
    assert any("posterior's own draws" in card for card in cards)


def test_distributions_of_a_bag_are_what_they_were():
    found = small().student(PLANE)
    plain = pickle.loads(pickle.dumps(found))
    assert isinstance(found, lb.Bernoulli)
    assert type(found).__name__ == "Bernoulli"
    assert type(plain) is lb.Bernoulli
    assert torch.equal(plain.mean, found.mean)


def test_the_command_line_holds_rows_out_and_says_so(tmp_path, monkeypatch, capsys):
    from limbeck.cli import main

    np.save(tmp_path / "draws.npy", NARROW.numpy())
    np.save(tmp_path / "x.npy", PLANE.repeat(2, 1).numpy())
    words = ["condense", str(tmp_path / "draws.npy"), "--predict", "logistic", "--inputs",
             str(tmp_path / "x.npy"), "--steps", "20", "--device", "cpu"]  # fmt: skip
    for name, more in (("held", []), ("all", ["--test-fraction", "0"])):
        monkeypatch.setattr("sys.argv", ["limbeck", *words, "--out", str(tmp_path / name), *more])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        capsys.readouterr()
    content = storage.read(tmp_path / "held").content
    assert content["new_inputs"]["held_out"]["inputs"] == 24
    assert content["agreement"]["inputs"] == 24
    content = storage.read(tmp_path / "all").content
    assert content["new_inputs"]["state"] == "unchecked"
    assert not content.get("agreement")
