r"""Refuse files above 500 kB: data and weights live in folders that the user names."""

import sys
from pathlib import Path

LIMIT = 500_000


def main(names: list[str]) -> int:
    r"""Name every file that is too large; 1 if there is one."""
    sizes = {name: Path(name).stat().st_size for name in names if Path(name).is_file()}
    large = {name: size for name, size in sizes.items() if size > LIMIT}
    for name, size in sorted(large.items()):
        print(f"{name}: {size:,} bytes; accepted: at most {LIMIT:,}")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
