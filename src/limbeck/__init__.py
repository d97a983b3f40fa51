r"""limbeck: knowledge distillation in the wide sense.

It turns a cumbersome model into a convenient one that does the same job.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0.dev0"

# Public names and their modules, as the stub imports them. A module is imported when something of
# its own is used, so that `--help` need not wait.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'limbeck' has no attribute {name!r}")
    if _HOMES[name] in ("limbeck", "limbeck.training"):  # packages, whose modules are public
        return import_module(f"{_HOMES[name]}.{name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
