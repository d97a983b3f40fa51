r"""CSV files: Stan's, and plainer ones."""

from __future__ import annotations

import numpy as np
import pytest

from limbeck.posteriors.files import places
from limbeck.posteriors.read import as_draws
from tests.refusals import refused

RNG = np.random.default_rng(0)
THETA = RNG.normal(size=(2, 6, 2, 3))  # (chain, draw, row, column)
MU = RNG.normal(size=(2, 6))

HEAD = """# stan_version_major = 2
# method = sample (Default)
#   sample
#     num_samples = 4
#     num_warmup = {warmup}
#     save_warmup = {saved}
#     thin = {thin}
# id = {id}
"""
TAIL = """#
#  Elapsed Time: 0.01 seconds (Warm-up)
#                0.02 seconds (Total)
#
"""


def write(path, chain, *, saved="0 (Default)", warmup=1000, thin=1, names=None):
    columns = [f"theta.{i}.{j}" for j in (1, 2, 3) for i in (1, 2)]  # as Stan has it: by column
    names = names or ["lp__", "accept_stat__", "mu", *columns]
    lines = [HEAD.format(warmup=warmup, saved=saved, thin=thin, id=chain + 1) + ",".join(names)]
    for draw in range(6):
        if draw == 2:
            lines.append("# Adaptation terminated\n# Step size = 0.8")
        theta = THETA[chain, draw].T.ravel()
        lines.append(",".join(repr(float(v)) for v in (-7.0, 0.9, MU[chain, draw], *theta)))
    path.write_text("\n".join(lines) + "\n" + TAIL)
    return path


def test_chains_of_stan(tmp_path):
    paths = [write(tmp_path / f"chain-{chain}.csv", chain) for chain in range(2)]
    draws = as_draws(paths)
    assert repr(draws) == "Draws(2 chains of 6: mu (), theta (2, 3))"
    assert draws.notes == ()
    np.testing.assert_array_equal(draws.take(range(12))["theta"], THETA.reshape(12, 2, 3))
    np.testing.assert_array_equal(draws.take(range(12))["mu"], MU.reshape(12))
    one = as_draws(str(paths[1]), var_names="mu", burn_in=2)
    np.testing.assert_array_equal(one.take(range(4))["mu"], MU[1, 2:])


def test_names_in_brackets(tmp_path):
    columns = [f'"theta[{i},{j}]"' for j in (1, 2, 3) for i in (1, 2)]
    path = write(tmp_path / "a.csv", 0, names=["lp__", "accept_stat__", '"mu"', *columns])
    draws = as_draws(path)
    assert draws.structure.names == ("mu", "theta")
    np.testing.assert_array_equal(draws.take(range(6))["theta"], THETA[0])


@pytest.mark.parametrize("saved", ["1", "true"])
def test_saved_warmup_is_left_out(tmp_path, saved):
    draws = as_draws(write(tmp_path / "a.csv", 0, saved=saved, warmup=4, thin=2))
    assert draws.notes == ("2 warmup draws of each chain are left out",)
    np.testing.assert_array_equal(draws.take(range(4))["mu"], MU[0, 2:])


def test_plain_tables(tmp_path):
    path = tmp_path / "plain.csv"
    np.savetxt(path, THETA[0, :, 0], delimiter=",")
    np.testing.assert_array_equal(as_draws(path).flat, THETA[0, :, 0])
    np.savetxt(path, THETA[0, :, 0], delimiter=",", header="a,b,c", comments="")
    assert as_draws(path).structure.names == ("a", "b", "c")
    np.savetxt(path, THETA[0, :, 0], delimiter=",", header="0,1,2", comments="")
    np.testing.assert_array_equal(as_draws(path).flat, THETA[0, :, 0])


def test_tables_of_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(THETA[0, :, 0])
    frame.to_csv(tmp_path / "indexed.csv")
    np.testing.assert_array_equal(as_draws(tmp_path / "indexed.csv").flat, THETA[0, :, 0])
    named = frame.set_axis(["theta[0]", "theta[1]", "theta[2]"], axis=1)
    named.assign(chain__=[1, 1, 1, 2, 2, 2]).to_csv(tmp_path / "named.csv")
    draws = as_draws(tmp_path / "named.csv")
    assert repr(draws) == "Draws(2 chains of 3: theta (3,))"
    np.testing.assert_array_equal(draws.flat, THETA[0, :, 0])


@pytest.mark.parametrize(
    ("header", "received"),
    [
        (["a.1", "a.3"], "2 columns of a"),
        (["a.1", "a.1.2"], "2 columns of a"),
        (["a", "a.1"], "2 columns of a"),
        (["a.1", "a[1]"], r"two columns 'a\[1\]'"),
        (["lp__", ".draw"], "the columns lp__, .draw"),
    ],
)
def test_columns_that_do_not_fit(header, received):
    with refused("posterior", received):
        places(header)


def test_columns_from_zero():
    assert places(["a[1]", "a[0]"])["a"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "argument", "received"),
    [
        ("", "posterior", "without a line of names"),
        ("# only = comments\n", "posterior", "without a line of names"),
        ("a,b\n", "posterior", "^no draws$"),
        ("a,b\n1,2\n", "posterior", "a single draw"),
        ("a,b\n1,2\n3\n", "posterior", "a.csv, which cannot be read"),
        ("a,b\n1,2\n3,x\n", "posterior", "a.csv, which cannot be read"),
        (
            "a,b\n1,2\n3,nan\n",
            "posterior['b']",
            "NaN or infinite numbers in 1 of 2 draws",
        ),
    ],
)
def test_broken_tables(tmp_path, text, argument, received):
    (tmp_path / "a.csv").write_text(text)
    with refused(argument, received):
        as_draws(tmp_path / "a.csv")


def test_chains_that_do_not_belong_together(tmp_path):
    first = write(tmp_path / "a.csv", 0)
    (tmp_path / "b.csv").write_text("mu\n1\n2\n")
    with refused("posterior", r"b\.csv, with other columns than .*a\.csv"):
        as_draws([first, tmp_path / "b.csv"])
    short = tmp_path / "c.csv"
    lines = first.read_text().splitlines()
    short.write_text("\n".join(lines[:-6]))
    with refused("posterior", "files of 6, 4 draws"):
        as_draws([first, short])
