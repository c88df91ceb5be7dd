"""Who of the run that is on stays for the next one, who leaves, and how many new members that takes. Questions only.

A member stays in its pod where it can go on training there. Those that are lost have neither stayed nor left.
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure_operator.api.status import Assigned
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import made_from_another, own, wanted_size
from perdure_operator.decide.signals import signals_of_nodes


@dataclass(frozen=True)
class Succession:
    """The members of the run that is on, as the next one has them."""

    stays: tuple[Assigned, ...] = ()
    """In the order of their ranks."""
    leaves: tuple[Assigned, ...] = ()
    """Alive, and not in the next run."""
    joins: int = 0
    """How many new members it takes."""


def succession(draft: Draft) -> Succession:
    """As things are now; nobody stays where no run is on, or all were told to leave."""
    current, wanted = draft.current, wanted_size(draft.snapshot)
    if current is None or (current.intent and current.intent.leave):
        return Succession(joins=wanted.members)
    pods, ended = own(draft.snapshot), {one.name for one in current.outcomes}
    alive = [one for one in current.plan.members if one.name in pods and one.name not in ended]
    alike = current.plan.world * wanted.members == wanted.world * len(current.plan.members)
    here = [pods[one.name] for one in alive]
    unfit = {signal.pod for signal in signals_of_nodes(draft.snapshot, here)}
    unfit |= {pod.name for pod in here if pod.deleting or made_from_another(draft, pod)}
    stays = tuple([one for one in alive if alike and one.name not in unfit][: wanted.members])
    names = {one.name for one in stays}
    leaves = tuple(one for one in alive if one.name not in names)
    return Succession(stays, leaves, wanted.members - len(stays))
