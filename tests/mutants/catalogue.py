"""Bugs of the kinds that were really made, or that tests once did not notice. Read by `__main__` and by the tests."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.planted.answering import ANSWERING
from tests.mutants.planted.ending import ENDING
from tests.mutants.planted.inside import INSIDE
from tests.mutants.planted.leaving import LEAVING
from tests.mutants.planted.members import MEMBERS
from tests.mutants.planted.moving import MOVING
from tests.mutants.planted.reading import READING
from tests.mutants.planted.standby_pool import STANDBY_POOL
from tests.mutants.planted.writing import WRITING

CATALOGUE: Final[tuple[Mutant, ...]] = (
    *LEAVING,
    *ENDING,
    *MEMBERS,
    *READING,
    *WRITING,
    *ANSWERING,
    *MOVING,
    *STANDBY_POOL,
    *INSIDE,
)
