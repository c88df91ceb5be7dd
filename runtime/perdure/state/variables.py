"""The objects in a script's variables. The garbage collector does not list a torch.Generator, and only variables have
names.

Only variables of the script's own functions and modules are searched, with what their values hold, and those of other
of its own modules from which it has something. Before Python 3.13 a function's variables are seen as a copy, which the
function's frame keeps with all that is in it; so the copy is emptied again. A script that may have requested that copy
itself, for example by `locals()`, is left alone.

Called by perdure.session.forgotten.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

from torch import nn

from perdure.state.parts import parts_of

_OBJECTS: Final = 2000
"""How many objects of one variable are looked at."""
_COPIES: Final = frozenset({"locals", "vars", "dir", "eval", "exec"})
_OF_IMPORTS: Final = frozenset({"__builtins__", "__loader__", "__spec__"})
"""What the interpreter sets in each module. A loader may hold anything: that of a test that pytest has rewritten holds
the whole test run."""
_INSTALLED: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def variables() -> Iterator[tuple[str, Any]]:
    """The name and value of each variable in the calling frames, and of all that their values hold."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - its public name
    seen: set[int] = set()
    further: dict[str, None] = {}
    """Names of modules from which a variable comes."""
    while frame is not None:
        if _is_own(str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename):
            for name, value in _of(frame):
                further |= dict.fromkeys(_from(value))
                yield from parts_of(value, name, seen, most=len(seen) + _OBJECTS, enters=enters)
        frame = frame.f_back
    for module in (sys.modules[name] for name in further if name in sys.modules):
        if _is_own(module.__name__, getattr(module, "__file__", None) or "<frozen>"):
            for name, value in _globals(vars(module)):
                path = f"{module.__name__}.{name}"
                yield from parts_of(value, path, seen, most=len(seen) + _OBJECTS, enters=enters)


def _is_own(module: str, file: str) -> bool:
    """Whether this is a part of the script, and not installed."""
    return module.partition(".")[0] != "perdure" and not file.startswith((*_INSTALLED, "<frozen"))


def _from(value: Any) -> tuple[str, ...]:
    """The module from which a script has this, if it is one, or a function or class."""
    if isinstance(value, ModuleType):
        return (value.__name__,)
    return (value.__module__,) if isinstance(value, type | FunctionType) else ()


def _globals(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in list(names.items()) if name not in _OF_IMPORTS]


def _of(frame: FrameType) -> list[tuple[str, Any]]:
    found = _globals(frame.f_globals)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and _COPIES.isdisjoint(frame.f_code.co_names):
        own = frame.f_locals
        found += own.items()
        if type(own) is dict:
            own.clear()
    return found


def enters(value: Any) -> bool:
    """Whether to look for more in it: not in the session, nor in what torch itself keeps."""
    return isinstance(value, nn.Module) or type(value).__module__.partition(".")[0] not in ("perdure", "torch")
