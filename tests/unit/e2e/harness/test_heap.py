"""What imports have made is looked at once, set aside before the first test, and given back at the end."""

from __future__ import annotations

import gc


class Link:
    """Part of a cycle: only the collector frees it."""


MADE_AT_IMPORT = [Link()]
COLLECTS_AT_IMPORT = gc.isenabled()


def test_a_collection_does_not_look_at_what_imports_have_made_but_at_what_a_test_makes() -> None:
    made = [Link()]
    seen = {id(thing) for thing in gc.get_objects()}
    assert id(MADE_AT_IMPORT) not in seen
    assert id(made) in seen


def test_the_collector_rests_while_test_modules_are_imported_and_works_in_tests() -> None:
    assert not COLLECTS_AT_IMPORT
    assert gc.isenabled()
