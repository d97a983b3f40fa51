r"""`python -m limbeck.cli` is the command `limbeck`."""

from __future__ import annotations

from limbeck.cli import main

if __name__ == "__main__":
    main()
