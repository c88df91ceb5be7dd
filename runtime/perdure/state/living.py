"""What lives in this process, by its kind.

While a list of all objects lives, a tuple that another thread is filling has a second holder, and CPython ends the
filling with `SystemError: bad argument to internal function`. So no such list lives where another thread may run: the
kinds are found in a single call into C, and then whoever refers to one of them, as each object does to its class.
Nothing of that is kept either: not by `itertools.tee`, say, which is itself among all objects, and so holds itself and
whatever was made beside it until the next collection.

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
