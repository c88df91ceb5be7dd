"""The objects in a script's variables. The garbage collector does not list a torch.Generator, and only variables have
names.

Only variables of the script's own functions and modules are searched, and the attributes of their values. Before Python
3.13 a function's variables are seen as a copy, which the function's frame keeps with all that is in it; so the copy is
emptied again. A script that may have requested that copy itself, for example by `locals()`, is left alone.

Called by perdure.session.forgotten.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any, Final

_COPIES: Final = frozenset({"locals", "vars", "dir", "eval", "exec"})
_INSTALLED: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def variables() -> Iterator[tuple[str, Any]]:
    """The name and value of each variable in the calling frames, and of their values' attributes."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - its public name
    seen: set[int] = set()
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "perdure" and not frame.f_code.co_filename.startswith((*_INSTALLED, "<frozen")):
            for name, value in _of(frame):
                yield from _with_attributes(name, value, seen)
        frame = frame.f_back


def _of(frame: FrameType) -> list[tuple[str, Any]]:
    found = list(frame.f_globals.items())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and _COPIES.isdisjoint(frame.f_code.co_names):
        own = frame.f_locals
        found += own.items()
        if type(own) is dict:
            own.clear()
    return found


def _with_attributes(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or isinstance(value, type | ModuleType):
        return
    seen.add(id(value))
    yield name, value
    own = getattr(value, "__dict__", None)
    if type(own) is dict and type(value).__module__.partition(".")[0] not in ("perdure", "torch"):
        yield from ((f"{name}.{inner}", one) for inner, one in list(own.items()) if id(one) not in seen)
