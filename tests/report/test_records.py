r"""What results keep of each verb is what the models say, checked by other means."""

import json

import numpy as np
import pytest
import torch

import limbeck as lb
from limbeck import storage
from limbeck.report import normalization, records
from limbeck.report.summary import image_of, some
from tests.refusals import refused
from tests.report import making


@pytest.mark.slow
@pytest.mark.parametrize("name", making.NAMES)
def test_every_result_has_what_all_have_and_comes_back(name, tmp_path):
    content, arrays = making.to_record(name)
    found = storage.read(storage.write(tmp_path, content, arrays))
    assert list(found.content) != []
    assert found.content["verb"] in storage.VERBS
    assert found.content["summary"].endswith(".")
    assert found.content["title"]
    assert found.content["seconds"] >= 0
    assert found.content["models"][0]["role"] == "teacher"
    assert {"limbeck", "torch", "python", "date", "hardware"} <= set(found.content["circumstances"])
    assert all(set(each) == {"name", "held", "words"} for each in found.content["verdicts"])
    for key, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[key], array)


def test_compress_keeps_the_report_and_the_rows_of_disagreement():
    (content, arrays), (small, report) = making.to_record("compress"), making.compressed()
    assert content["fidelity"] == json.loads(json.dumps(report.to_dict()))
    assert content["summary"] == f"{report.sentence()} {report.need()}"
    X = making.digits()[0][300:500]
    chosen = [each["row"] for each in report.disagreements]
    np.testing.assert_array_equal(arrays["disagreement_rows"], X[chosen])
    assert content["image"] == [8, 8]
    assert content["seed"] == 3
    assert content["command"] == making.COMMAND
    assert [each["role"] for each in content["models"]] == [
        "teacher", "student", "labels alone", "trees on labels",
    ]  # fmt: skip
    count = sum(p.numel() for p in small.student.parameters())
    assert content["models"][1]["parameters"] == count
    assert content["history"]["loss"] == small.history["loss"]
    assert [each["name"] for each in content["verdicts"] if not each["held"]] == [
        "required agreement"
    ]


def test_rows_of_tables_are_kept_in_words():
    content, arrays = making.to_record("table")
    _, report, rows = making.measured()
    assert "disagreement_rows" not in arrays
    for each, example in zip(report.disagreements, content["examples"], strict=True):
        row = rows.iloc[each["row"]]
        assert example == {"town <b>": str(row["town <b>"]), "size": str(row["size"])}
    assert not next(e for e in content["verdicts"] if e["name"] == "quality")["held"]


def test_rows_must_be_those_of_the_report():
    small, report = making.compressed()
    with refused("X", "300 rows"):
        records.to_record(small, verb="compress", report=report, X=making.digits()[0][:300])


def test_without_rows_nothing_is_measured():
    content, arrays = records.to_record(making.compressed()[0], verb="compress")
    assert "fidelity" not in content
    assert arrays == {}
    assert content["summary"].startswith("A student of ")


def test_surfaces_are_averages_over_all_draws():
    content, arrays = making.to_record("condense")
    small, draws, x = making.condensed()
    one, two = np.meshgrid(arrays["surface_x"], arrays["surface_y"], indexing="ij")
    grid = np.stack([one.ravel(), two.ravel()], 1)

    def average(weights):
        return (1 / (1 + np.exp(-grid @ weights.T))).mean(1).reshape(one.shape)

    np.testing.assert_allclose(arrays["surface_teacher"][0], average(draws.numpy()), atol=1e-5)
    pseudo = small.student._flat.detach().numpy()
    np.testing.assert_allclose(arrays["surface_student"][0], average(pseudo), atol=1e-5)
    np.testing.assert_array_equal(arrays["pseudo_draws"], pseudo)
    assert arrays["pseudo_weights"].sum() == pytest.approx(1)
    assert arrays["surface_x"][0] < x[:, 0].min() < x[:, 0].max() < arrays["surface_x"][-1]
    np.testing.assert_array_equal(arrays["draws"], draws)
    found = small.report(x)
    assert content["agreement"]["mean_error"] == pytest.approx(found.mean_error)
    assert content["models"][0]["parameters"] == draws.numel()
    assert content["models"][1]["bytes"] == small.bytes


def test_densities_integrate_to_one():
    content, arrays = making.to_record("density")
    assert content["density"] is True
    for model in ("teacher", "student"):
        mass = np.trapezoid(arrays[f"curve_{model}"][0], arrays["curve_x"])
        assert mass == pytest.approx(1, abs=1e-3)


def test_a_stream_is_compared_with_further_draws_of_it():
    def stream():
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randn(200, 2, generator=generator)

    small = lb.condense(
        stream(), making.predict, lb.inputs.Noise((2,), 2.0), components=3, steps=20, progress=False
    )
    content, _ = records.to_record(small, verb="condense", x=torch.randn(10, 2))
    assert content["agreement"]["draws"] == 4000
    assert "4,000 further draws" in content["notes"][-1]
    ended = lb.condense(
        (torch.randn(50, 2) for _ in range(30)), making.predict, lb.inputs.Noise((2,), 2.0),
        components=3, steps=20, progress=False,
    )  # fmt: skip
    content, _ = records.to_record(ended, verb="condense", x=torch.randn(10, 2))
    assert "agreement" not in content
    assert "no further draws" in " ".join(content["notes"])


def test_the_divergence_is_that_of_the_sum_over_all_events():
    result, rbm = making.normalized()
    exact = lb.exact_log_z(rbm, progress=False)
    events = rbm.support.enumerate(0, 2**9)
    content, arrays = records.to_record(
        result, verb="normalize", target=rbm, exact=exact, data=events, sweeps=100
    )
    assert np.exp(arrays["log_prob_teacher"]).sum() == pytest.approx(1, abs=1e-4)
    assert np.exp(arrays["log_prob_student"]).sum() == pytest.approx(1, abs=1e-4)
    found, true = content["divergence"], making.kl(rbm, result.student)
    assert abs(found["value"] - true) < 4 * found["std_error"]
    assert content["held_out"]["events"] == 512
    assert "image" not in content


def test_without_log_z_the_teacher_is_shifted_and_not_compared():
    content, arrays = making.to_record("ring")
    assert content["log_z_used"] is None
    assert "divergence" not in content
    assert "teacher" not in content["held_out"]
    gap = arrays["log_prob_teacher"] - arrays["log_prob_student"]
    assert gap.mean() == pytest.approx(0, abs=1e-9)


def test_features_stand_where_their_pixels_do():
    rbm = lb.RBM.random(64, 3, generator=torch.Generator().manual_seed(0))
    nade = lb.NADE(64, hidden=3, order=torch.randperm(64).tolist())
    shown = normalization._features(rbm, "teacher")["features_teacher"]
    weights = rbm.W.detach().numpy()
    norms = np.linalg.norm(weights, axis=0)
    np.testing.assert_array_equal(shown, weights.T[np.argsort(-norms)])
    placed = normalization._features(nade, "student")["features_student"]
    own, order = nade.w.detach().numpy(), nade.order.numpy()
    first = np.argmax(np.linalg.norm(own, axis=0))
    np.testing.assert_array_equal(placed[0][order], own[:, first])


def test_estimates_keep_their_reasons():
    content, _ = making.to_record("logz")
    found = making.estimates()
    for entry, (name, z) in zip(content["log_z"], found.items(), strict=True):
        assert (entry["name"], entry["value"]) == (name, z.value)
        assert tuple(entry["interval_95"]) == z.interval()
        assert entry["reasons"] == list(z.verdict.reasons)
    held = {each["name"]: each["held"] for each in content["verdicts"]}
    assert held == {f"log Z, {n}": z.verdict.trustworthy for n, z in found.items()}
    assert content["exact"] == pytest.approx(lb.exact_log_z(making.normalized()[1], progress=False))


@pytest.mark.parametrize("wrong", [{}, [], {"bridge": 3.0}, None])
def test_what_is_no_estimate_is_refused(wrong):
    with refused("log_z"):
        records.to_record(wrong, verb="logz")


def test_an_unknown_verb_is_refused():
    with refused("verb", expected="did you mean 'normalize'"):
        records.to_record(None, verb="normalise")


def test_images_are_known_by_their_shape():
    assert image_of(np.zeros((2, 1, 5, 7))) == {"image": [5, 7]}
    assert image_of(np.zeros((2, 64))) == {"image": [8, 8]}
    assert image_of(np.full((2, 64), -1.0)) == {}  # numbers below zero are no grey
    assert image_of(np.zeros((2, 49))) == {}  # too small to be told from a table
    assert image_of(None) == {}


def test_some_places_are_distinct_and_in_order():
    chosen = some(1000, 50)
    assert len(set(chosen)) == 50
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(some(1000, 50), chosen)
    np.testing.assert_array_equal(some(3, 50), [0, 1, 2])


@pytest.mark.parametrize("form", ["tensor", "list", "sparse", "words", "data set"])
def test_rows_of_any_kind_are_kept_if_they_can_be(form):
    from scipy.sparse import csr_array

    small, report = making.compressed()
    X = making.digits()[0][300:500]
    given = {
        "tensor": torch.as_tensor(X),
        "list": X.tolist(),
        "sparse": csr_array(X),
        "words": X.astype(str),
        "data set": torch.utils.data.TensorDataset(torch.as_tensor(X)),
    }[form]
    content, arrays = records.to_record(small, verb="compress", report=report, X=given)
    chosen = [each["row"] for each in report.disagreements]
    if form == "words":
        assert content["examples"][0]["column 3"] == str(X[chosen[0], 3])
    elif form == "data set":
        assert arrays == {}
    else:
        np.testing.assert_allclose(arrays["disagreement_rows"], X[chosen], rtol=1e-6)


def test_rows_of_numbers_that_are_no_images_are_columns_of_the_report(tmp_path):
    from limbeck.report import page

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    small = lb.compress(
        lambda x: x[:, 0] ** 2, X, student=(4,), inputs="data", steps=20, progress=False
    )
    report = small.report(X, time=False)
    content, arrays = records.to_record(small, verb="compress", report=report, X=X)
    assert "disagreement_rows" not in arrays
    row = X[report.disagreements[0]["row"]]
    assert content["examples"][0] == {f"column {k}": f"{x:.4g}" for k, x in enumerate(row)}
    text = page.write(storage.write(tmp_path, content, arrays)).with_name("report.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("| row | difference"))
    assert line.endswith("| column 0 | column 1 | column 2 |")


def test_exact_sums_are_estimates_without_an_error():
    z = lb.log_partition(making.normalized()[1], method="exact", progress=False)
    content, _ = records.to_record(z, verb="logz")
    (entry,) = content["log_z"]
    assert entry["interval_95"] == [entry["value"]] * 2
    assert "exactly" in content["summary"]


def test_an_estimate_that_is_no_number_is_kept_as_such(tmp_path):
    from limbeck.normalization.estimate import LogPartition, Verdict
    from limbeck.report import page

    lost = LogPartition(float("nan"), float("inf"), "ais", Verdict(("all weights are zero",)))
    result, rbm = making.normalized()
    content, arrays = records.to_record(result, verb="normalize", target=rbm, log_z=lost)
    assert content["log_z"][0]["value"] is None
    assert "log Z" not in content["summary"]
    written = page.write(storage.write(tmp_path, content, arrays)).read_text(encoding="utf-8")
    assert "all weights are zero" in written
