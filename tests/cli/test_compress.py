r"""`limbeck compress` on real files."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import limbeck as lb

QUICK = ("--steps", "60", "--student", "8", "--inputs", "data", "--no-timing", "--no-verdicts")


def content(folder):
    return json.loads((Path(folder) / "result.json").read_text())


def test_a_table_a_function_and_a_test_file(limbeck, here):
    words = ("compress", "models:teacher", "train.csv", "--test", "test.csv", "--drop", "y")
    found = limbeck(*words, *QUICK, "--out", "out")
    assert found.code == 0, found.err
    assert "agreement with teacher" in found.out
    assert "The result is in out" in found.out
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "arrays.npz", "compression.json", "config.toml", "manifest.json", "result.json",
        "student.safetensors", "training.json",
    ]  # fmt: skip
    assert content("out")["fidelity"]["rows"] == 40
    frame = pytest.importorskip("pandas").read_csv("test.csv")
    assert lb.load("out").predict_proba(frame).shape == (40, 2)


def test_without_a_test_file_some_rows_are_set_aside(limbeck, here):
    words = ("compress", "models:teacher", "train.csv", "--drop", "y", *QUICK)
    assert limbeck(*words, "--test-fraction", "0.25").code == 0
    assert content("limbeck-compress")["fidelity"]["rows"] == 20


def test_names_of_classes_that_the_teacher_does_not_know_are_refused(refused, here):
    words = ("compress", "models:teacher", "train.csv", "--label", "y", *QUICK)
    assert "'down'" in refused(*words)


def test_classes_are_named_on_the_command_line(limbeck, here):
    words = ("compress", "models:teacher", "train.csv", "--label", "y", "--label-weight", "0.5")
    found = limbeck(*words, *QUICK, "--classes", "up, down", "--out", "out")
    assert found.code == 0, found.err
    assert content("out")["fidelity"]["classes"] == ["up", "down"]
    assert content("out")["fidelity"]["measures"]["student"]["accuracy"][0] > 0.5
    words = ("compress", "models:teacher", "both.npz", "--label", "y", *QUICK)
    assert limbeck(*words, "--classes", "1,0", "--out", "two").code == 0
    assert content("two")["fidelity"]["classes"] == [1, 0]


def test_names_of_the_wrong_number_are_refused(refused, here):
    words = ("compress", "models:teacher", "train.csv", "--drop", "y", *QUICK)
    assert "2 classes" in refused(*words, "--classes", "a,b,c")


def test_weights_are_a_column(limbeck, refused, here):
    lines = Path("train.csv").read_text().splitlines()
    weights = ["w", *("0" if line.endswith("up") else "2" for line in lines[1:])]
    pairs = list(zip(lines, weights, strict=True))
    Path("weighted.csv").write_text("\n".join(f"{line},{w}" for line, w in pairs))
    used = [f"{line},{w}" for line, w in pairs if w != "0"]
    Path("used.csv").write_text("\n".join(used))
    words = ("compress", "models:teacher", "weighted.csv", "--test", "weighted.csv", "--drop", "y")
    array = (*QUICK, "--rows", "array")
    assert limbeck(*words, *array, "--sample-weight", "w", "--out", "one").code == 0
    words = ("compress", "models:teacher", "used.csv", "--test", "used.csv", "--drop", "y")
    assert limbeck(*words, *array, "--drop", "w", "--out", "two").code == 0
    one, two = (content(folder)["fidelity"]["measures"]["student"] for folder in ("one", "two"))
    assert one["kl"][0] == pytest.approx(two["kl"][0], rel=1e-3)
    words = ("compress", "models:teacher", "train.csv", "--drop", "y", *QUICK)
    assert "--sample-weight" in refused(*words, "--sample-weight", "w")
    Path("negative.csv").write_text(Path("weighted.csv").read_text().replace(",2", ",-2"))
    words = ("compress", "models:teacher", "negative.csv", "--drop", "y", *QUICK)
    assert "--sample-weight: expected" in refused(*words, "--sample-weight", "w")


@pytest.mark.slow
def test_labels_of_an_npz_file_are_used(limbeck, here):
    words = ("compress", "models:teacher", "both.npz", "--label", "y", *QUICK, "--json", "--quiet")
    found = limbeck(*words)
    assert found.code == 0, found.err
    measures = json.loads(found.out)["fidelity"]["measures"]
    assert set(measures) == {"teacher", "student", "baseline", "trees"}
    assert 0 <= measures["student"]["accuracy"][0] <= 1
    assert json.loads(found.out)["folder"] == "limbeck-compress"


def test_it_is_what_the_library_does(limbeck, here):
    np.save("all.npy", np.load("both.npz")["X"])
    limbeck("compress", "models:net", "all.npy", "--test", "all.npy", *QUICK, "--seed", "3")
    from models import net

    same = lb.compress(net, np.load("all.npy"), (8,), inputs="data", steps=60, seed=3)
    saved = lb.load("limbeck-compress")
    for name, tensor in same.student.state_dict().items():
        assert torch.equal(saved.student.state_dict()[name], tensor), name


def test_a_table_of_numbers_is_an_array_for_a_net(limbeck, here):
    found = limbeck("compress", "models:net", "train.csv", "--drop", "y", *QUICK)
    assert found.code == 0, found.err
    assert lb.load("limbeck-compress").row_format.shape == (3,)


def test_a_net_of_the_users_own_is_trained_and_exported_again(limbeck, refused, here):
    pytest.importorskip("onnxruntime")
    Path("own.py").write_text("from torch import nn\n\nsmall = nn.Sequential(nn.Linear(3, 2))\n")
    words = ("compress", "models:net", "train.csv", "--drop", "y", "--student", "own:small")
    found = limbeck(*words, *QUICK[:2], *QUICK[4:], "--export", "one.onnx")
    assert found.code == 0, found.err
    line = refused("export", "limbeck-compress", "two.onnx")
    assert ", as module:name" in line
    assert "(then 'own:small')" in line
    again = limbeck("export", "limbeck-compress", "two.onnx", "--student", "own:small")
    assert again.code == 0, again.err
    assert Path("one.onnx").stat().st_size == Path("two.onnx").stat().st_size


def test_derivatives_are_matched(limbeck, here):
    words = ("compress", "models:net", "train.csv", "--drop", "y", *QUICK)
    assert limbeck(*words, "--derivatives", "0.01").code == 0
    assert "derivative_error" in content("limbeck-compress")["settings"]["loss"]


def test_parquet_is_read(limbeck, here):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv("train.csv").drop(columns="y").to_parquet("train.parquet")
    found = limbeck("compress", "models:teacher", "train.parquet", *QUICK)
    assert found.code == 0, found.err


def test_inputs_that_are_chosen_are_named(limbeck, here):
    np.save("many.npy", np.random.default_rng(1).normal(size=(300, 3)))
    words = ("compress", "models:teacher", "many.npy", "--pool", "300", "--steps", "30")
    found = limbeck(*words, "--student", "8", "--no-timing", "--no-verdicts")
    assert found.code == 0, found.err
    tried = content("limbeck-compress")["tried"]
    assert {"data", "munge"} < {each["inputs"] for each in tried}
    best = min(tried, key=lambda each: each["divergence"])["inputs"]
    assert content("limbeck-compress")["settings"]["generator"] in ("munge", best)


@pytest.mark.slow
def test_a_pickle_is_read_only_if_it_is_trusted(limbeck, refused, here):
    from sklearn.linear_model import LogisticRegression

    held = np.load("both.npz")
    Path("model.pkl").write_bytes(pickle.dumps(LogisticRegression().fit(held["X"], held["y"])))
    words = ("compress", "model.pkl", "both.npz", "--label", "y", *QUICK)
    said = refused(*words)
    assert "runs any code in it" in said
    assert "--trust-pickle" in said
    assert limbeck(*words, "--trust-pickle").code == 0
    Path("model.pkl").write_bytes(b"not a pickle")
    assert "cannot be read" in refused(*words, "--trust-pickle", "--overwrite")


class Sly:
    def __reduce__(self):
        return (Path("ran").touch, ())


def test_an_untrusted_pickle_is_not_opened(refused, here):
    Path("sly.joblib").write_bytes(pickle.dumps(Sly()))
    refused("compress", "sly.joblib", "train.csv")
    assert not Path("ran").exists()


def test_requirements_decide_about_the_exit_code(limbeck, here):
    words = ("compress", "models:teacher", "train.csv", "--drop", "y", *QUICK, "--quiet")
    assert limbeck(*words, "--require", "agreement=0.01", "--require", "bytes<=1e6").code == 0
    found = limbeck(*words, "--require", "agreement=0.01", "--require", "parameters<=3")
    assert found.code == 3
    assert not found.out
    assert "above the 3 that was required" in found.err
    assert "agreement" not in found.err
    assert limbeck(*words, "--require", "accuracy=0.5").code == 3  # which no label tells


@pytest.mark.slow
def test_a_verdict_that_fails_is_exit_code_three(limbeck, here):
    x = np.random.default_rng(1).normal(size=(200, 3))
    right = (x @ [[1.0, -1.0], [0.5, 2.0], [-1.0, 0.0]]).argmax(1)  # the teacher's own answers
    np.savez("right.npz", X=x.astype("float32"), y=right)
    words = ("compress", "models:teacher", "right.npz", "--test", "right.npz", "--label", "y")
    words = (*words, "--steps", "1", "--student", "2", "--inputs", "data", "--no-timing", "--quiet")
    strict, lenient = limbeck(*words), limbeck(*words, "--no-verdicts")
    verdicts = content("limbeck-compress")["verdicts"]
    failed = [each["name"] for each in verdicts if not each["held"]]
    assert failed
    assert strict.code == 3
    assert lenient.code == 0
    for name in failed:
        assert name in strict.err


def test_what_cannot_be_read_is_one_line(refused, here):
    Path("broken.csv").write_bytes(b"a,b\n\xff\xfe\x00,3\n")
    Path("ragged.csv").write_text("a,b\n1,2\n1,2,3,4\n")
    Path("empty.csv").write_text("")
    Path("bare.csv").write_text("a,b,c\n")
    Path("folder").mkdir()
    Path("words.csv").write_text("a,b,c\nx,y,z\nx,y,z\nx,y,z\n")
    for file, said in (
        ("missing.csv", "missing.csv, which does not exist"),
        ("folder", "folder, a folder"),
        ("broken.csv", "broken.csv, which cannot be read"),
        ("ragged.csv", "ragged.csv, which cannot be read"),
        ("empty.csv", "empty.csv, which cannot be read"),
        ("bare.csv", "no rows"),
        ("models.py", "ends in .csv"),
    ):
        assert said in refused("compress", "models:teacher", file, *QUICK)
        assert not Path("limbeck-compress").exists()
    assert "columns that are not numbers: a, b, c" in refused(
        "compress", "models:net", "words.csv", *QUICK
    )


def test_columns_that_are_not_there_are_named(refused, here):
    words = ("compress", "models:teacher", "train.csv", *QUICK)
    assert "'a', 'b', 'c', 'y' (did you mean 'y'?)" in refused(*words, "--label", "Y")
    assert re.search("--drop: expected .*, got 'z'", refused(*words, "--drop", "z"))
    line = refused(*words, "--drop", "y", "--group", "z")
    assert re.search("--group: expected .*, got 'z'", line)


def test_rows_to_compare_on_have_the_same_columns(refused, here):
    Path("less.csv").write_text("a,b,y\n1,2,up\n")
    words = ("compress", "models:teacher", "train.csv", "--label", "y", "--test", "less.csv")
    assert re.search("--test: expected .*, got less.csv, without c", refused(*words, *QUICK))


def test_teachers_that_are_none_are_refused(refused, here):
    for teacher, said in (
        ("nothing", "module:name"),
        ("nothing.onnx", "nothing.onnx, which does not exist"),
        ("models:techer", "did you mean 'teacher'?"),
        ("modles:teacher", "did you mean 'models'?"),
        ("models:number", "of type int"),
    ):
        assert said in refused("compress", teacher, "train.csv", "--drop", "y", *QUICK)
    found = refused("compress", "models:failing", "train.csv", "--drop", "y", *QUICK)
    assert "no such luck" in found
    assert not Path("limbeck-compress").exists()


def test_nothing_can_be_written_under_a_file(refused, here):
    words = ("compress", "models:teacher", "train.csv", "--drop", "y", *QUICK)
    assert "cannot be written to" in refused(*words, "--out", "train.csv/result")
    assert "which is a file" in refused(*words, "--out", "train.csv")
    assert "other things" in refused(*words, "--out", ".")
    assert "cannot be under it" in refused(*words, "--export", "train.csv/a.onnx")


def test_bad_options_are_refused_before_anything_runs(refused, here):
    words = ("compress", "models:teacher", "train.csv", "--drop", "y", *QUICK)
    assert "did you mean 'agreement'?" in refused(*words, "--require", "agrement=0.9")
    assert "such as agreement=0.98" in refused(*words, "--require", "agreement")
    assert "hidden sizes such as 50,30" in refused(*words, "--student", "8,x")
    assert "such as agreement=0.98" in refused(*words, "--require", "agreement=much")
    assert "--rows" in refused(*words, "--rows", "list")
    assert "would be set aside" in refused(*words, "--test-fraction", "1")
    assert "device" in refused(*words, "--device", "moon")
    assert not Path("limbeck-compress").exists()


def test_a_column_of_dates_is_read_as_one(limbeck, refused, here):
    pytest.importorskip("pandas")
    Path("dated.py").write_text(
        "import numpy as np\n\n\ndef teacher(rows):\n"
        "    p = np.where(rows['day'].dt.month > 6, 0.9, 0.1)\n    return np.stack([p, 1 - p], 1)\n"
    )
    lines = [f"2026-{1 + k % 12:02d}-{1 + k % 28:02d},{k % 10}" for k in range(84)]
    Path("dated.csv").write_text("\n".join(["day,x", *lines]))
    words = ("compress", "dated:teacher", "dated.csv", *QUICK)
    assert limbeck(*words, "--dates", "day", "--out", "out").code == 0
    columns = json.loads(Path("out/compression.json").read_text())["format"]["table"]["columns"]
    assert [column["kind"] for column in columns] == ["date", "whole number"]
    found = limbeck("label", "dated:teacher", "dated.csv", "--dates", "day")
    assert found.code == 0, found.err
    assert "--dates" in refused(*words, "--dates", "d")
    assert "its values are numbers" in refused(*words, "--dates", "x")
    Path("words.csv").write_text("day,x\n" + "no date,1\n" * 30)
    words = ("compress", "dated:teacher", "words.csv", *QUICK)
    assert "--dates" in refused(*words, "--dates", "day")
