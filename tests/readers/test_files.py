r"""Files of users: damaged ones and those that claim too much are refused, in one line."""

import io
import json
import resource
import struct
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

import limbeck as lb
from limbeck import cli, numpy_files
from limbeck.cli.files import read_data
from limbeck.cli.options import parse_config
from limbeck.cli.results import describe_path
from limbeck.errors import ArgumentError, LimbeckError
from limbeck.teachers.networks import open_model
from tests.refusals import raises_about, refused

X = np.random.default_rng(0).normal(size=(4, 50, 3))


def npy(shape, dtype="<f8", content=b""):
    r"""An npy file whose header claims what it likes."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def npz(path, content, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("X.npy", content)
    return path


CLAIMS = {
    "huge": npy((10**12, 10)),
    "overflowing": npy((2**40, 2**40, 2**40)),
    "negative": npy((-1, -5)),
    "objects": npy((2,), "|O", bytes(16)),
    "nested": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000,
    "no header": b"\x93NUMPY\x01\x00\xff\xff",
    "short": npy((100, 3), content=bytes(80)),
    "text": b"hello",
    "empty": b"",
}


@pytest.fixture
def little_memory():
    r"""The test may not need 400 MB more than there were before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("content", CLAIMS.values(), ids=CLAIMS)
def test_arrays_that_claim_what_is_not_there(tmp_path, content):
    (path := tmp_path / "a.npy").write_bytes(content)
    paths = [path, npz(tmp_path / "a.npz", content)]
    paths.append(npz(tmp_path / "stored.npz", content, zipfile.ZIP_STORED))
    for path in paths:
        for argument, read in (("posterior", lb.as_draws), ("x", lambda p: read_data(p, "x"))):
            with refused(argument, path.name):
                read(path)
        with raises_about(LimbeckError, path.name):
            describe_path(path)


@pytest.mark.usefixtures("little_memory")
def test_a_bomb_is_refused_before_it_is_expanded(tmp_path):
    size = 2**29  # of zeros, which take half a megabyte
    path = tmp_path / "a.npz"
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("X.npy", "w") as file:
        file.write(npy((size // 8, 1)))
        for _ in range(size // 2**20):
            file.write(bytes(2**20))
    for read in (lb.as_draws, lb.RBM.load, lambda p: read_data(p, "x")):
        with raises_about(ArgumentError, path.name):
            read(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_sound_arrays_are_as_numpy_reads_them(tmp_path, save, order):
    arrays = {
        "X": np.asarray(X, order=order),
        "n": np.arange(3, dtype=">i2"),
        "none": np.ones((0, 2)),
    }
    arrays |= {"words": np.array(["a", "bcd"]), "one": np.array(2.5)}
    save(path := tmp_path / "a.npz", **arrays)
    for name, member in numpy_files.members(path).items():
        read = numpy_files.read_member(path, member)
        assert read.dtype == arrays[name].dtype
        assert np.array_equal(read, arrays[name])


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "c.npz", "p.nc", "p.zarr", "a.parquet"])
def test_damaged_files_are_read_or_refused(tmp_path, name):
    path, generator = tmp_path / name, np.random.default_rng(0)
    write(path)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    contents = {file: file.read_bytes() for file in files}
    for case in range(40):
        file = files[case % len(files)]
        damaged = bytearray(contents[file])
        place = int(generator.integers(len(damaged)))
        damaged[place : place + 8] = (generator.bytes(8), bytes(8), b"\xff" * 8, b"")[case % 4]
        file.write_bytes(damaged)
        try:
            assert describe_path(path)["is"]
        except LimbeckError as error:
            assert "\n" not in str(error)  # noqa: PT017 - or it is read
        file.write_bytes(contents[file])
    assert describe_path(path)["is"]


def write(path):
    if path.suffix == ".npy":
        np.save(path, X)
    elif path.suffix == ".npz":
        (np.savez if path.stem == "a" else np.savez_compressed)(path, X=X)
    elif path.suffix == ".parquet":
        pd.DataFrame(X[0], columns=list("abc")).to_parquet(path)
    else:
        xarray = pytest.importorskip("xarray")
        data = xarray.Dataset({"alpha": (("chain", "draw", "k"), X)})
        data.to_zarr(path, consolidated=False) if path.suffix == ".zarr" else data.to_netcdf(path)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("part", ["alpha", "draw"])
def test_zarr_that_claims_32_tebibytes(tmp_path, part):
    xarray = pytest.importorskip("xarray")
    path = tmp_path / "p.zarr"
    coordinates = {"draw": np.arange(50)}
    xarray.Dataset({"alpha": (("chain", "draw", "k"), X)}, coordinates).to_zarr(
        path, consolidated=False
    )
    for name in ("alpha", "draw"):
        about = json.loads((path / name / "zarr.json").read_text())
        place = about["dimension_names"].index("draw")
        about["shape"][place] = 2**40
        if name == part:
            about["chunk_grid"]["configuration"]["chunk_shape"][place] = 2**40
        (path / name / "zarr.json").write_text(json.dumps(about))
    with refused("posterior", r"p\.zarr, which cannot be read \(it claims to hold"):
        lb.as_draws(path, var_names=["alpha"])


def test_hdf5_that_claims_what_was_never_written(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path := tmp_path / "p.h5", "w") as file:
        file.create_dataset("alpha", shape=(4, 2**40), dtype="f8", chunks=(1, 1024))
    with refused("posterior", "it claims to hold"):
        lb.as_draws(path)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("text", "argument", "received"),
    [
        ("a,b\n" + "1," * 10**7, "posterior", "a line of"),
        ("a" * 10**8, "posterior", "a line of"),
        ("a" + ".1" * 50_000 + "x,b\n1,2\n3,4\n", "posterior", "a name of"),
        ("a.1,a." + "9" * 100_000 + "\n1,2\n3,4\n", "posterior", "a name of"),
        ("a.1,a.999999999\n1,2\n3,4\n", "posterior", "2 columns of a"),
        ("a,b\n1," + "9" * 100_000 + "\n3,4\n", "posterior['b']", "NaN or infinite"),
        (
            "# num_warmup = 1" + "0" * 10**5 + "\n# save_warmup = 1\na,b\n1,2\n3,4\n",
            "posterior",
            "cannot be read",
        ),
        ("# thin = 0\na,b\n1,2\n3,4\n", "posterior", "cannot be read"),
        ("a,b\n1,x\n", "posterior", "cannot be read"),
        ("a,b\n1,2\n3\n", "posterior", "cannot be read"),
        ("\x00" * 100, "posterior", "^no draws$"),
    ],
    ids=lambda value: value[:20],
)
def test_csv_of_draws(tmp_path, text, argument, received):
    (path := tmp_path / "a.csv").write_text(text)
    with refused(argument, received) as caught:
        lb.as_draws(path)
    assert len(str(caught.value)) < 1000


def test_csv_of_rows_with_a_million_columns(tmp_path):
    (path := tmp_path / "a.csv").write_text("," * 10**6 + "\n1\n")
    with refused("x", "1,000,001 columns"):
        read_data(path, "x")


def test_a_parquet_file_that_claims_more_rows_than_fit(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = list(map(str, range(30)))
    rows = pyarrow.table([pyarrow.nulls(2_000_000, pyarrow.bool_())] * len(names), names)
    parquet.write_table(rows.slice(0, 300_000), path := tmp_path / "a.parquet")
    assert path.stat().st_size < 100_000
    assert len(read_data(path, "x")) == 300_000  # equal values are no bomb
    with parquet.ParquetWriter(path, rows.schema) as writer:
        for _ in range(10):
            writer.write_table(rows)
    with refused("x", "it claims to hold 4,800,000,000 bytes"):
        read_data(path, "x")


# options and commands


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 10**5, "a = " + "9" * 10_000, "a." * 10**5 + "b = 1", "a = \x00", "= 3"]
)
def test_options_that_are_no_toml(tmp_path, text):
    (path := tmp_path / "a.toml").write_text(text)
    with refused("--config", "cannot be read"):
        parse_config(path.read_bytes(), path)


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["limbeck", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code, capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    "text",
    ["steps = 1.5", "steps = true", "seed = '3'", "lr = 'fast'", "quiet = 1", "out = 3", "lr = nan",
     "require = 'agreement=1'", "steps = 9223372036854775808", "seed = 2020-01-01", "steps = [1]"],
)  # fmt: skip
def test_options_of_other_types(tmp_path, monkeypatch, capsys, text):
    (path := tmp_path / "a.toml").write_text(text)
    code, message = run(monkeypatch, capsys, "logz", "--config", path)
    assert code == 2
    assert f"a.toml: {text.split()[0]}: expected" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "name",
    ["a.onnx", "a.pt2", "a.npz", "a.npy", "a.mat", "a.safetensors", "a.csv", "a.parquet", "a.nc",
     "a.h5", "a.zarr", "a.cbm", "a.toml", "a"],
)  # fmt: skip
@pytest.mark.parametrize("content", [b"", b"\x00" * 4000, b"\xff" * 100, b"{" * 10**5], ids=len)
def test_info_on_anything(tmp_path, monkeypatch, capsys, name, content):
    (path := tmp_path / name).write_bytes(content)
    code, message = run(monkeypatch, capsys, "info", path)
    assert code == 2 or (name == "a.csv" and code == 0)
    assert "\n" not in message
    assert "unexpected" not in message


@pytest.mark.parametrize("about", [b"[]", b"{}", b"{", b"\xff", b"[" * 10**5])
def test_info_on_a_damaged_student(tmp_path, monkeypatch, capsys, about):
    metadata = json.dumps({"__metadata__": {"format": "limbeck-student-1", "about": "[]"}}).encode()
    content = struct.pack("<Q", len(metadata)) + metadata
    (tmp_path / "student.safetensors").write_bytes(content)
    (tmp_path / "result.json").write_bytes(about)
    code, message = run(monkeypatch, capsys, "info", tmp_path)
    assert code == 2
    assert "unexpected" not in message


# models of other libraries


def test_boosters_whose_reader_would_end_the_process(tmp_path):
    xgboost = pytest.importorskip("xgboost")
    booster = xgboost.train(
        {"objective": "binary:logistic"}, xgboost.DMatrix(X[0], X[0, :, 0] > 0), 3
    )
    booster.save_model(path := tmp_path / "b.ubj")
    content = path.read_bytes()
    assert open_model(path)[1].size == len(content)
    place = content.index(b"left_children")
    damaged = content[:place] + content[place:].replace(b"\x00\x00\x00\x01", b"\x7f\xff\xff\xf0", 1)
    assert damaged != content
    path.write_bytes(damaged)
    with refused("teacher", "b.ubj"):
        open_model(path)


@pytest.mark.parametrize("place", ["../outside.bin", "/etc/hostname", "link.bin", "a/../../x.bin"])
def test_weights_of_onnx_files_are_in_their_folder(tmp_path, place):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    weights = np.arange(8, dtype=np.float32)
    folder = tmp_path / "inner"
    folder.mkdir()
    for file in (tmp_path / "outside.bin", folder / "inside.bin"):
        file.write_bytes(weights.tobytes())
    (folder / "link.bin").symlink_to("../outside.bin")

    def write(place):
        tensor = onnx.TensorProto(name="W", dims=[4, 2], data_type=1, data_location=1)
        for key, value in {"location": place, "offset": "0", "length": "32"}.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        ports = [
            onnx.helper.make_tensor_value_info(n, 1, [None, k]) for n, k in (("x", 4), ("y", 2))
        ]
        node = onnx.helper.make_node("MatMul", ["x", "W"], ["y"])
        graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:], [tensor])
        opset = [onnx.helper.make_opsetid("", 13)]
        model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
        (folder / "m.onnx").write_bytes(model.SerializeToString())

    write("inside.bin")
    assert open_model(folder / "m.onnx")[1].size > 32
    write(place)
    with refused("teacher", f"with weights in '{place}'"):
        open_model(folder / "m.onnx")


def test_other_files_of_rbms(tmp_path):
    rbm = lb.RBM.random(4, 3)
    for suffix in (".npz", ".safetensors"):
        rbm.save(path := tmp_path / f"a{suffix}")
        content = path.read_bytes()
        for place in range(0, len(content), 7):
            path.write_bytes(content[:place] + bytes(8) + content[place + 8 :])
            try:
                again = lb.RBM.load(path)
            except LimbeckError:
                continue
            assert (again.visible, again.hidden) == (4, 3)
        path.write_bytes(content[:-1])
        with refused("path"):
            lb.RBM.load(path)
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    (tmp_path / "b.npz").write_bytes(stream.getvalue())
    with refused("path", "no npz file"):
        lb.RBM.load(tmp_path / "b.npz")
