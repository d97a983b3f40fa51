r"""`python -m reproduction chapter-2 --data DIR`: run the source text's experiments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from limbeck.errors import LimbeckError
from reproduction.command import CHAPTERS, reproduce
from reproduction.record import Asked

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    r"""Run a chapter; 0 if it ran, 2 if what it was given will not do."""
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    parser.add_argument("chapter", help=", ".join(CHAPTERS))
    parser.add_argument("--data", type=Path, help="folder with the data; default: $LIMBECK_DATA")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reproduction-results"),
        help="folder for results; chapter 2 continues what is there; default: %(default)s",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda; default: %(default)s")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    own = parser.add_argument_group("options of single chapters")
    own.add_argument("--seeds", type=int, help="students of each kind; data sets in chapter 3")
    own.add_argument("--cells", nargs="+", help="chapter 2: such as mnist-all-ce or 'nade-*'")
    own.add_argument("--steps-factor", type=float, help="chapter 2: a factor on all steps")
    own.add_argument("--init", help="chapter 2: initial weights, lecun (default) or he")
    own.add_argument("--parts", nargs="+", help="chapter 3: mixtures, logistic; default: both")
    own.add_argument("--hidden", nargs="+", type=int, help="chapter 4: hidden units")
    own.add_argument("--steps", type=int, help="chapter 4: steps of each distillation")
    own.add_argument("--samples", type=int, help="chapter 4: samples of each kind")
    own.add_argument("--burn-in", type=int, help="chapter 4: sweeps before the first draw")
    given = vars(parser.parse_args(arguments))
    request = Asked(
        given.pop("data"), given.pop("out"), given.pop("device"), not given.pop("quiet")
    )
    try:
        reproduce(given.pop("chapter"), request, **given)
    except LimbeckError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
