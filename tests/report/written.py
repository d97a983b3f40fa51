r"""What every folder of pictures must be."""


def assert_written(folder, said, names):
    r"""Pictures of these names and no others, each a PNG with a description in sentences."""
    assert sorted(said) == names
    for name, alt in said.items():
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert alt.endswith(".")
