"""Members that cannot train are replaced before their run is planned, at a pace that is never a storm.

Whatever made one useless (a pod reaper, a node that goes away without a taint) may do the same to the next: from the
second replacement in a row on, a pause comes before new members, and it doubles. The run's plan ends the row.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure.wire import ExitKind
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import NextRun, Replacements
from perdure_operator.decide.blame import charge, judge_standbys
from perdure_operator.decide.draft import Draft, clock, doubled, later, next_run
from perdure_operator.decide.facts import EDIT_SECONDS, joined, node_of, one_more, own, terminated
from perdure_operator.decide.outcomes import end_of
from perdure_operator.decide.placement import agent_missing, why_unfit
from perdure_operator.decide.signals import signal_of_node
from perdure_operator.decide.succession import succession
from perdure_operator.state.snapshot import PodView

_COSTS_NOTHING: Final = frozenset(
    {ExitKind.CHECKPOINTED, ExitKind.STOPPED, ExitKind.EXIT_TIMEOUT, ExitKind.HANDED_OVER, ExitKind.HANDOVER_FAILED}
)


def replace_unfit(draft: Draft) -> Draft:
    """Drop the names of members that cannot train; those that ended by themselves cost a failure."""
    pods = own(draft.snapshot)
    unfit = {name: why for name in draft.next_members if (why := why_unfit(draft, name, pods.get(name)))}
    if not unfit:
        return draft
    dropped = [pods[name] for name in unfit if name in pods]
    failed = [end_of(pod) for pod in dropped if _ended_by_itself(draft, pod)]
    words = joined([f"{name} {why}" for name, why in unfit.items()])
    draft = draft.tell(Reason.MEMBER_REPLACED, f"new members take the place of those that cannot train: {words}")
    draft = draft.allot(tuple(name for name in draft.next_members if name not in unfit))
    if dropped:  # a name without a pod has cost nothing
        draft = _count(draft, words, [pods[one.name].node for one in failed])
    if draft.current:
        return draft  # the run that is on is not to be judged by its standbys
    return charge(draft, judge_standbys(failed)) if failed else draft


def pace(draft: Draft) -> Draft:
    """Before new members a pause, once the ones before them had to be replaced again."""
    replaced = draft.status.next.replacements if draft.status.next else None
    if replaced is None or len(draft.next_members) >= succession(draft).joins:
        return draft
    until = _pause_until(replaced)
    if replaced.generation != draft.snapshot.generation:
        until = min(until, later(replaced.last_time, EDIT_SECONDS))
    if draft.now >= until:
        return draft
    message = (
        f"{replaced.count} times in a row members could not train and were replaced: {replaced.cause}; "
        f"the next ones are created at {clock(until)}"
    )
    return draft.block(Reason.REPLACING_MEMBERS, message, until)


def _pause_until(replaced: Replacements) -> datetime:
    """The first replacement is made at once, the second after 1 s, each further one after twice as long."""
    return doubled(replaced.last_time, replaced.count - 1) if replaced.count > 1 else replaced.last_time


def _count(draft: Draft, cause: str, nodes: list[str]) -> Draft:
    upcoming = draft.status.next or NextRun(run=next_run(draft.status))
    row = one_more(draft, upcoming.replacements, cause, nodes)
    return draft.update(next=upcoming.model_copy(update={"replacements": row}))


def _ended_by_itself(draft: Draft, pod: PodView) -> bool:
    if pod.deleting or not terminated(pod) or agent_missing(pod) or (pod.gone and pod.terminated is None):
        return False
    on_its_way = signal_of_node(draft.snapshot, node_of(draft.snapshot, pod), pod)
    return not on_its_way and end_of(pod).outcome not in _COSTS_NOTHING
