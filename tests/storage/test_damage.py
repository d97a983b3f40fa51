r"""A file that is not as it was written is refused by name, or loads equal."""

import json
import os
import signal

import pytest
import safetensors.torch
import torch

import limbeck as lb
from limbeck.storage import files, folders
from tests.faults import damages
from tests.refusals import raises_about, refused
from tests.storage.writers import CHECKED, WRITERS, content, plain


@pytest.mark.parametrize("name", CHECKED)
def test_no_damage_is_silent(tmp_path, name):
    assert damages(WRITERS[name], tmp_path, 60, seed=len(name)) > 30


@pytest.mark.parametrize("name", ["result", "checkpoint", "nade"])
def test_every_byte_counts(tmp_path, name):
    r"""Each byte of the student, the checkpoint or the density is flipped in turn."""
    writer = WRITERS[name]
    writer.save(tmp_path / "x", 0)
    whole = writer.load(tmp_path / "x")
    (path,) = (tmp_path / "x").glob("*.safetensors")
    before, equal = path.read_bytes(), 0
    for at in range(len(before)):
        path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        try:
            assert writer.load(tmp_path / "x") == whole
            equal += 1
        except lb.CheckpointError as error:
            assert path.name in str(error)  # noqa: PT017
    assert equal < 10  # spaces of the header's padding


@pytest.fixture
def folder(tmp_path):
    return plain(0).save(tmp_path / "saved")


def change(folder, **fields):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


RECORD = {"sha256": "0" * 64, "bytes": 0}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"format": "limbeck-folder-9"}, "has the format 'limbeck-folder-9'; expected"),
        ({"kind": "resulu"}, "has 'resulu' as kind"),
        ({"token": "../../../etc"}, "as token"),
        ({"files": []}, r"\.files: expected a dict, got a list"),
        ({"files": {"a": {"sha256": "0"}}}, r"files\.a\.bytes: expected a value, got nothing"),
        ({"files": {"a": {"sha256": 3, "bytes": 0}}}, r"a\.sha256: expected a string, got 3"),
        ({"files": {"a": {"sha256": "", "bytes": -1}}}, r"has -1 as files\.a\.bytes"),
        ({"files": {"../a": RECORD}}, "names a file '../a'"),
        ({"files": {"/etc/passwd": RECORD}}, "names a file '/etc/passwd'"),
        ({"files": {"..": RECORD}}, r"names a file '\.\.'"),
        ({"files": {"a/b": RECORD}}, "names a file 'a/b'"),
        ({"files": {"c:\\a": RECORD}}, "names a file"),
        ({"obsolete": {"../a": RECORD}}, "names a file '../a'"),
        ({"files": {"\ud800": RECORD}}, "names a file"),
        ({"obsolete": {"\ud800": RECORD}}, "names a file"),
        ({"surprise": 1}, "got 'surprise'"),
    ],
)
def test_a_manifest_of_another_form_is_refused_with_its_field(folder, fields, said):
    change(folder, **fields)
    with pytest.raises(lb.CheckpointError, match=rf"manifest\.json .*{said}"):
        lb.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[" * 10**5, "[]", "1" * 5000, "\ud800"])
def test_a_manifest_that_is_no_json_is_refused(folder, text):
    (folder / "manifest.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    with raises_about(lb.CheckpointError, "manifest.json"):
        lb.load(folder)
    with raises_about(lb.CheckpointError, "manifest.json"):
        plain(1).save(folder)  # nothing is written over what is not understood


def test_a_size_is_compared_before_anything_is_read(folder, monkeypatch):
    os.truncate(folder / "student.safetensors", 2**40)  # a hole: it takes no place on the disk
    monkeypatch.setattr(folders, "_read_checked", None)
    with raises_about(lb.CheckpointError, "student.safetensors", "1,099,511,627,776"):
        lb.load(folder)


@pytest.mark.parametrize("name", ["student.safetensors", "manifest.json"])
def test_links_are_not_followed(folder, tmp_path, name):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with raises_about(lb.CheckpointError, name):
        lb.load(folder)


@pytest.fixture
def writerless():
    r"""A reader that waits for the writer of a pipe fails."""

    def waits(number, frame):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waits)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("writerless")
@pytest.mark.parametrize("name", ["student.safetensors", "training.json", "manifest.json"])
@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device"])
def test_only_regular_files_are_read(folder, name, kind):
    (folder / name).unlink()
    if kind == "a pipe":
        os.mkfifo(folder / name)
    elif kind == "a folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to("/dev/zero")
    if name != "manifest.json":
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        change(folder, files=listed | {name: {"sha256": "0" * 64, "bytes": 0}})
    with raises_about(lb.CheckpointError, name):
        lb.load(folder)


def test_a_size_for_which_there_is_no_memory(folder):
    os.truncate(folder / "training.json", 2**43)  # a hole
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    change(folder, files=listed | {"training.json": {"sha256": "0" * 64, "bytes": 2**43}})
    with raises_about(lb.CheckpointError, "training.json"):
        lb.load(folder)


def test_a_large_file_with_the_name_of_an_obsolete_one_is_not_read(folder):
    with open(folder / "mine", "wb") as file:
        file.truncate(2**43)  # a hole
    change(folder, obsolete={"mine": RECORD})
    plain(1).save(folder)
    assert (folder / "mine").stat().st_size == 2**43


def test_tensors_that_share_their_bytes_are_refused_before_they_are_copied(folder):
    part = {"dtype": "U8", "shape": [1000], "data_offsets": [0, 1000]}
    header = json.dumps({"a": part, "b": part}).encode()
    content = bytearray(len(header).to_bytes(8, "little") + header + bytes(2000))
    with raises_about(lb.CheckpointError, "b has other bytes than its shape"):
        files.parse(content, folder)


PART = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": PART | {"shape": [2, 4]}},
        {"a": PART | {"shape": [-2, -3]}},
        {"a": PART | {"shape": [2.0, 3]}},
        {"a": PART | {"shape": [True, 6]}},
        {"a": PART | {"shape": 6}},
        {"a": PART | {"shape": [0, 2**70], "data_offsets": [0, 0]}},
        {"a": PART | {"data_offsets": [8, 32]}},
        {"a": PART | {"data_offsets": [-8, 16]}},
        {"a": PART | {"data_offsets": [0, 24, 24]}},
        {"a": PART | {"shape": [2**40], "data_offsets": [0, 2**42]}},
        {"a": PART | {"dtype": "nn"}},
        {"a": {"dtype": "F32"}},
        {"a": None},
        {"a": PART, "__metadata__": {"format": 3}},
        {"a": PART, "__metadata__": ["format"]},
        {"a": PART, "b": PART},
        {},
        [PART],
        7,
    ],
    ids=str,
)
def test_headers_that_are_not_true_are_refused(header, tmp_path):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = bytearray(len(text).to_bytes(8, "little") + text + bytes(24))
    with raises_about(lb.CheckpointError, "is not a readable safetensors file"):
        files.parse(content, tmp_path)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 40, 2**40, 2**64 - 1])
def test_headers_of_a_wrong_length_are_refused(length, tmp_path):
    for text in (b"", b'{"a":' * 6):
        content = bytearray(length.to_bytes(8, "little") + text)
        with raises_about(lb.CheckpointError, "is not a readable safetensors file"):
            files.parse(content, tmp_path)


def test_a_name_that_comes_twice_in_a_header_is_refused(tmp_path):
    part = json.dumps(PART)
    text = f'{{"a": {part}, "a": {part}}}'.encode()
    content = bytearray(len(text).to_bytes(8, "little") + text + bytes(24))
    with raises_about(lb.CheckpointError, "twice"):
        files.parse(content, tmp_path)


def test_files_of_the_safetensors_library_are_read_as_it_reads_them(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        str(dtype): torch.randint(0, 2, shape, generator=generator).to(dtype)
        for dtype, shape in zip(files.TYPES, [(3,), (), (2, 0), (5, 1, 2), (7,)] * 3, strict=False)
    }
    content = safetensors.torch.save(tensors, {"about": "these"})
    for start in range(4):  # wherever in memory its numbers lie
        text = b" " * start
        length = int.from_bytes(content[:8], "little")
        moved = (length + start).to_bytes(8, "little") + content[8 : 8 + length] + text
        loaded, metadata = files.parse(bytearray(moved + content[8 + length :]), tmp_path)
        assert metadata == {"about": "these"}
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name], tensor)


def test_a_description_that_is_no_text_is_refused(folder):
    header = json.dumps(
        {"__metadata__": {"format": "limbeck-student-1", "about": "\ud800"}}
    ).encode()
    content = len(header).to_bytes(8, "little") + header
    folders.write(folder, "result", {"student.safetensors": content}, keep=None)
    with raises_about(lb.CheckpointError, "student.safetensors"):
        lb.load(folder)


def test_a_folder_without_its_manifest_is_refused(folder):
    (folder / "manifest.json").unlink()
    with refused("folder", "without manifest.json"):
        lb.load(folder)
    plain(1).save(folder)
    assert content(lb.load(folder)) == content(plain(1))


def test_folders_of_other_kinds_are_neither_read_nor_written_over(tmp_path):
    WRITERS["checkpoint"].save(tmp_path, 0)
    with refused("folder", "holds checkpoints"):
        lb.load(tmp_path)
    with refused("folder", "holds checkpoints"):
        plain(0).save(tmp_path)


def test_weights_that_are_not_finite_are_refused(folder):
    student = lb.MLP(3, 4, 2)
    state = student.state_dict() | {"layers.0.bias": torch.full((4,), torch.nan)}
    saved = files.encode(state, {"spec": student.spec()}, "limbeck-student-1")
    folders.write(folder, "result", {"student.safetensors": saved}, keep=None)
    with raises_about(lb.CheckpointError, "student.safetensors"):
        lb.load(folder)
