"""Keeps Python's global random generator for the training script: botocore draws from it between two tries.

Otherwise one 503 of the store would shift every number that the script draws later, and so change the weights. This
replaces `random` in botocore's modules; the waits between tries stay as they are. Called before the first client is
made.
"""

from __future__ import annotations

import random
from typing import Final

from botocore import retryhandler, utils
from botocore.retries import standard

OWN: Final = random.Random()  # noqa: S311 - spreads tries over time, and is no secret
"""Seeded by the system; no training uses it."""


def keep_global_generator() -> None:
    """From now on botocore draws from OWN. Further calls change nothing."""
    for module in (retryhandler, utils, standard):
        module.random = OWN  # type: ignore[attr-defined]
    begin = standard.ExponentialBackoff.__init__
    begin.__defaults__ = tuple(OWN.random if value == random.random else value for value in begin.__defaults__ or ())
