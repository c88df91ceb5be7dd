"""A Session whose loop a framework drives: what its adapter says of itself, beyond what a script says.

Called by perdure.adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.checkpoint.codec import decode, encode
from perdure.group.collectives import on_all
from perdure.session.liveness import tell_attached
from perdure.session.registry import Stateful
from perdure.session.session import Session


def drive(session: Session, framework: str) -> None:
    """`framework` drives the loop: its ranks change in place, by a save and a new start, never between two batches."""
    run = session._run  # noqa: SLF001 - adapters are the Session's own
    run.driven_by = framework
    tell_attached(run)


def keep(session: Session, name: str, state: Stateful, before_save: Callable[[], None]) -> None:
    """Saves what the framework itself keeps, under `name`. `before_save` is called on all ranks where a save, or the
    rehearsal of one, is about to read it: there the ranks may put together what each has of its own.

    Rank 0's state_dict is saved, whatever the others' are.
    """
    run = session._run  # noqa: SLF001 - see above
    run.registry.add(name, state, loose=True)
    run.before_save = before_save


def of_all_ranks(session: Session, name: str, own: Callable[[], Any]) -> list[Any]:
    """What `own` gives on each rank, by rank, tensors on the CPU: anything that a checkpoint can hold. Collective.

    An error on one rank is one on all of them; `name` is what it is called there.
    """
    run = session._run  # noqa: SLF001 - see above
    _, told = on_all(run.peers, lambda: (None, encode(own(), name)))
    return [decode(found) for found in told]
