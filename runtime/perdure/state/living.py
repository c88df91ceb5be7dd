"""Finds objects of this process, by their types.

While a list of all objects exists, a tuple that another thread is filling has a second holder, and CPython ends the
filling with `SystemError: bad argument to internal function`. So no such list exists while another thread may run: one
call into C finds the types, and then the referrers of these types, as each object refers to its class. Nothing of that
is kept either. `itertools.tee`, for example, would be among all objects itself, and so would hold itself and everything
made beside it until the next collection.

Called by perdure.session.validating and perdure.session.forgotten.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import chain
from typing import Any


def living(counts: Callable[[type], bool]) -> list[Any]:
    """All objects of which the type counts."""
    listed = chain.from_iterable(map(gc.get_objects, (None,)))  # when the first one is asked for
    kinds = {kind for kind in set(map(type, listed)) if counts(kind)}
    return [thing for thing in gc.get_referrers(*kinds) if type(thing) in kinds]
