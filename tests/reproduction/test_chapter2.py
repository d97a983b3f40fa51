r"""Chapter 2 in small: the whole way from the data to the results, and how runs go on and join."""

import itertools
import json

import pytest
import torch

from limbeck.errors import LimbeckError
from limbeck.models.ensemble import Ensemble
from reproduction import chapter2, chapter2_parts, data, keeping
from reproduction.chapter2 import CELLS, LABELS, Settings
from reproduction.chapter2_parts import Parts, by_columns
from tests.refusals import raises_about, refused
from tests.reproduction.digits import SETTINGS, SHAPE, small

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return small()


def run(digits, out, settings=SETTINGS):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "mnist", lambda folder: digits)
        return chapter2.run(None, out, settings, device="cpu", progress=False)


@pytest.fixture(scope="module")
def whole(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("chapter-2")
    run(digits, out)
    return out


@pytest.fixture(scope="module")
def found(whole):
    return json.loads((whole / chapter2.FILE).read_text())


def key(entry):
    return entry["cell"], entry["seed"]


def numbers(found):
    r"""Results without what differs from one run to the next: times."""
    kept = ("cell", "seed", "steps", "accuracy", "log_prob", "difference")
    return [{name: entry[name] for name in kept if name in entry} for entry in found["runs"]]


def test_every_cell_is_there_for_every_seed(found):
    assert len(CELLS) == 14
    assert sorted(map(key, found["runs"])) == sorted(itertools.product(CELLS, (0, 1)))
    assert [each["name"] for each in found["nades"]] == ["all-0", "all-1", "tenth-0", "tenth-1"]
    assert list(found["samples"]) == ["all", "tenth"]


def test_steps_are_as_many_as_the_passes_make(found):
    steps = {entry["cell"]: entry["steps"] for entry in found["runs"]}
    assert steps["labels-all"] == 6 * 200 // 20  # trained as the teacher's members are
    assert steps["labels-tenth"] == 6 * 20 // 20
    for name, cell in CELLS.items():
        if cell.generator != "labels":  # noise and NADE have as many samples as MNIST
            assert steps[name] == 4 * {"all": 200, "tenth": 20}[cell.share] // 20


def test_the_texts_own_numbers_of_steps():
    parts = Parts(small(train=60_000, test=1), None, Settings(), CPU, False)
    steps = {name: parts._made(cell, 0)["steps"] for name, cell in CELLS.items()}
    assert steps["mnist-all-ce"] == steps["noise-all-dse"] == 120_000
    assert steps["nade-tenth-ce"] == steps["noise-tenth-ce"] == 12_000
    assert steps["labels-all"] == 60_000
    assert parts._steps(10, "all") == 30_000


def test_the_figures_are_those_of_the_saved_nets(digits, whole, found):
    logs = {}
    for name, seed in itertools.product(CELLS, (0, 1)):
        net, _ = keeping.read(whole / "nets" / f"{name}-{seed}.safetensors", "cpu")
        with torch.no_grad():
            logs[name, seed] = torch.log_softmax(net(digits.test).double(), 1)
    index = torch.arange(300), digits.test_labels
    for entry in found["runs"]:
        own = logs[key(entry)]
        right = (own.argmax(1) == digits.test_labels).double()
        assert entry["accuracy"][0] == pytest.approx(100 * right.mean().item(), abs=1e-4)
        error = 100 * right.std().item() / 300**0.5
        assert entry["accuracy"][1] == pytest.approx(error, abs=1e-4)
        assert entry["log_prob"][0] == pytest.approx(own[index].mean().item(), abs=1e-4)
        cell = CELLS[entry["cell"]]
        if cell.generator == "labels":
            assert "difference" not in entry
            continue
        direct = logs[LABELS[cell.share].name, entry["seed"]]
        apart = (own - direct)[index]
        assert entry["difference"]["log_prob"] == pytest.approx(
            [apart.mean().item(), apart.std().item() / 300**0.5], abs=1e-4
        )
        gain = right - (direct.argmax(1) == digits.test_labels).double()
        assert entry["difference"]["accuracy"] == pytest.approx(
            [100 * gain.mean().item(), 100 * gain.std().item() / 300**0.5], abs=1e-4
        )


def test_the_teacher_is_kept_with_its_figures(digits, whole, found):
    teacher, _ = keeping.read(whole / "teacher.safetensors", "cpu")
    assert isinstance(teacher, Ensemble)
    assert len(teacher) == 3
    (about,) = found["teachers"]
    assert about["digest"] == keeping.digest(teacher)
    with torch.no_grad():
        right = teacher(digits.test).argmax(1) == digits.test_labels
    assert about["accuracy"][0] == pytest.approx(100 * right.float().mean().item(), abs=1e-4)
    assert about["accuracy"][0] > 60


def test_curves_belong_to_the_first_seed_and_end_at_the_end(found):
    for entry in found["runs"]:
        assert ("curve" in entry) == (entry["seed"] == 0)
        if "curve" in entry:
            curve = entry["curve"]
            assert curve["samples"][-1] == 20 * entry["steps"]
            assert curve["samples"] == sorted(set(curve["samples"]))
            assert curve["accuracy"][-1] == pytest.approx(entry["accuracy"][0], abs=1e-3)
            assert curve["log_prob"][-1] == pytest.approx(entry["log_prob"][0], abs=1e-3)


def test_a_finished_run_is_not_run_again(digits, whole, found, monkeypatch):
    monkeypatch.setattr(Parts, "one", lambda *_: pytest.fail("trained again"))
    assert run(digits, whole) == found


def test_parts_of_a_run_make_up_the_whole(digits, found, tmp_path):
    settings = vars(SETTINGS)
    for cells, seeds in ((("mnist-all-ce",), (0,)), (("nade-tenth-dse", "mnist-all-ce"), (0, 1))):
        so_far = run(digits, tmp_path, Settings(**settings | {"cells": cells, "seeds": seeds}))
    wanted = {"labels-all", "labels-tenth", "mnist-all-ce", "nade-tenth-dse"}
    assert {entry["cell"] for entry in so_far["runs"]} == wanted
    assert numbers(so_far) == [e for e in numbers(found) if e["cell"] in wanted]
    assert so_far["settings"]["seeds"] == [0, 1]


def test_a_direct_net_that_was_lost_is_trained_again(digits, tmp_path):
    settings = Settings(**vars(SETTINGS) | {"cells": ("mnist-tenth-ce",), "seeds": (0,)})
    first = run(digits, tmp_path, settings)
    (tmp_path / "nets" / "labels-tenth-0.safetensors").unlink()
    assert numbers(run(digits, tmp_path, settings)) == numbers(first)
    assert (tmp_path / "nets" / "labels-tenth-0.safetensors").exists()


def test_other_settings_in_the_same_folder_are_refused(digits, whole):
    with refused("out", "other settings: passes was 4 and is 5"):
        run(digits, whole, Settings(**vars(SETTINGS) | {"passes": 5}))


def test_a_teacher_made_otherwise_is_refused(digits, whole, tmp_path):
    (tmp_path / "teacher.safetensors").write_bytes((whole / "teacher.safetensors").read_bytes())
    settings = Settings(**vars(SETTINGS) | {"teacher_seed": 7})
    with raises_about(LimbeckError, "seed was 0 and is 7"):
        run(digits, tmp_path, settings)


def test_a_file_that_is_no_result_is_refused(digits, tmp_path):
    (tmp_path / chapter2.FILE).write_text('{"runs": []}')
    with refused("out", "cannot be read"):
        run(digits, tmp_path)


def test_runs_of_other_seeds_are_merged(whole, found, tmp_path):
    def only(seed):
        runs = [entry for entry in found["runs"] if entry["seed"] == seed]
        return found | {"runs": runs, "settings": found["settings"] | {"seeds": [seed]}}

    (tmp_path / "one.json").write_text(json.dumps(only(1)))
    joined = chapter2.merge([only(0), tmp_path / "one.json"])
    assert joined["runs"] == found["runs"]
    assert joined["settings"] == found["settings"]
    assert len(joined["teachers"]) == 1
    assert joined["seconds"] == pytest.approx(2 * found["seconds"])


def test_what_two_runs_have_in_common_is_taken_from_the_first(found):
    other = json.loads(json.dumps(found))
    for entry in other["runs"]:
        entry["accuracy"] = [0.0, 0.0]
    assert chapter2.merge([found, other])["runs"] == found["runs"]


def test_results_of_other_settings_are_not_merged(found):
    other = found | {"settings": found["settings"] | {"members": 30}}
    with refused("results", "members was 3 and is 30"):
        chapter2.merge([found, other])
    with refused("results", "^none$"):
        chapter2.merge([])


@pytest.mark.parametrize("name", ["mnist-all-ce", "mnist-tenth-dse"])
def test_a_live_teacher_says_what_a_stored_one_does(digits, found, tmp_path, monkeypatch, name):
    monkeypatch.setattr(chapter2_parts, "fits", lambda size, place: False)
    settings = Settings(**vars(SETTINGS) | {"cells": (name,), "seeds": (0,)})
    live = run(digits, tmp_path, settings)["runs"][-1]
    stored = next(entry for entry in found["runs"] if key(entry) == (name, 0))
    assert live["cell"] == name
    assert live["log_prob"] == pytest.approx(stored["log_prob"], abs=1e-4)


def test_what_is_stored_for_all_images_serves_the_tenth(digits, tmp_path):
    parts = Parts(digits, tmp_path, SETTINGS, CPU, False)
    everything = parts._teacher_of(CELLS["mnist-all-dse"])
    assert parts._teacher_of(CELLS["mnist-tenth-dse"]) is everything
    assert parts._teacher_of(CELLS["mnist-tenth-ce"]) is everything
    assert parts._teacher_of(CELLS["noise-all-ce"]) is parts.teacher[0]
    assert parts._teacher_of(CELLS["labels-all"]) is None


def test_nade_takes_pixels_down_the_columns_and_gives_them_row_by_row(digits, tmp_path):
    settings = Settings(**vars(SETTINGS) | {"nade_passes": 30})
    nade, _ = Parts(digits, tmp_path, settings, CPU, False).nade("all", 0)
    places = [divmod(int(pixel), SHAPE[1]) for pixel in nade.order]
    assert places == [(y, x) for x in range(5) for y in range(4)]
    drawn = nade.sample_probabilities(2000, torch.Generator().manual_seed(0)).mean(0)
    wanted = digits.train.round().mean(0)
    mixed_up = drawn[by_columns(SHAPE)]
    assert (drawn - wanted).abs().mean() < 0.5 * (mixed_up - wanted).abs().mean()


def test_the_nades_inputs_are_probabilities_of_its_samples(digits, tmp_path):
    parts = Parts(digits, tmp_path, SETTINGS, CPU, False)
    source = parts._inputs(CELLS["nade-all-ce"], 0)
    x = source(50).x
    assert x.shape == (50, 20)
    assert 0 < x.min() < x.max() < 1
    assert len(x.unique()) > 100  # no bits


def test_settings_are_checked():
    with refused("cells", "'mnist-al-ce'", expected="did you mean 'mnist-all-ce'"):
        Settings(cells=("mnist-al-ce",))
    with refused("steps_factor", "^0$"):
        Settings(steps_factor=0)
    with refused("seeds", "^none$"):
        Settings(seeds=())
    with refused("cells", r"'cifar-\*'"):
        chapter2.chosen(["mnist-*", "cifar-*"])
