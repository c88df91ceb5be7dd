"""Bugs in noticing that members have to leave, in telling them, and in waiting for them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_DECIDE: Final = "operator/perdure_operator/decide/"
_TABLES: Final = f"{_DECIDE}__init__.py"
_FACTS: Final = f"{_DECIDE}facts.py"
_DISRUPTIONS: Final = f"{_DECIDE}disruptions.py"
_INTENTS: Final = f"{_DECIDE}intents.py"
_LEAVING: Final = f"{_DECIDE}leaving.py"
_SIGNALS: Final = f"{_DECIDE}signals.py"
_PROBLEMS: Final = f"{_DECIDE}waiting.py"

LEAVING: Final = (
    Mutant(
        "most nodes not Ready at once are taken for as many dead nodes",
        _FACTS,
        "return zone.ready > 0 and down > 2 and down / (down + zone.ready) >= _OUTAGE_SHARE",
        "return False",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "no node Ready at all is not taken for an outage",
        _FACTS,
        "if snapshot.zones and not any(zone.ready for zone in snapshot.zones):",
        "if not snapshot.zones:",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "an outage changes nothing in when members are given up",
        _FACTS,
        "if not unready.outage:",
        "if unready:",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "members are given up while no node is Ready to take others",
        _FACTS,
        "if not any(zone.ready for zone in draft.snapshot.zones):",
        "if not draft.snapshot.zones:",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "after a long outage all nodes are given up at once",
        _LEAVING,
        "unready=tuple(marked), given_up=draft.now)",
        "unready=tuple(marked))",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "the time of an outage counts against a node once it is over",
        _LEAVING,
        "if old is None or (old.outage and not outage):",
        "if old is None:",
        ("all-kubelets-silent", "node-power"),
    ),
    Mutant(
        "the nodes of terminating pods are not observed",
        _LEAVING,
        "if pod.node and not terminated(pod)}",
        "if pod.node and not pod.deleting and not terminated(pod)}",
        ("node-dies-under-deleted",),
    ),
    Mutant(
        "the deadline is looked at before the suspension, between runs",
        _TABLES,
        "    suspend,  # before `expire`, as it resets the deadline\n    expire,\n",
        "    expire,\n    suspend,\n",
        ("deadline-while-saving",),
    ),
    Mutant(
        "the deadline is looked at before the suspension, in a run",
        _DISRUPTIONS,
        "(_faulty, _lost, _waits_for_the_dead, _deleted, _suspended, _expired, _nodes_leaving, _resized)",
        "(_faulty, _lost, _waits_for_the_dead, _deleted, _expired, _suspended, _nodes_leaving, _resized)",
        ("deadline-while-saving", "operator-crash"),
    ),
    Mutant(
        "a suspension does not restart the deadline",
        f"{_DECIDE}gates.py",
        "_without_members(draft).update(start_time=None).block(",
        "_without_members(draft).block(",
        ("deadline-while-saving",),
    ),
    Mutant(
        "a member that outlives its grace is waited for with a deadline in the past",
        _PROBLEMS,
        "return [pod for pod in pods if (end := stuck_at(pod)) and end <= draft.now]",
        "return []",
        ("deleted-and-stuck",),
    ),
    Mutant(
        "a member whose annotation admission refuses is never asked in another way",
        _PROBLEMS,
        "return [pod for pod in pods if refused_change(draft, pod.name)]",
        "return []",
        ("suspended-unheard",),
    ),
    Mutant(
        "status waits for the exit save of members that could not be asked",
        _LEAVING,
        'await_refused(draft, not_asked, "asked to leave")',
        'await_refused(draft, (), "asked to leave")',
        ("suspended-unheard",),
    ),
    Mutant(
        "the peers of a deleted member are given longer than its grace",
        _LEAVING,
        "ends = [*_ends_of_grace(draft), *_end_of_patience(draft, current)]",
        "ends = _end_of_patience(draft, current)",
        ("suspended-while-one-goes",),
    ),
    Mutant(
        "members whose peer is lost may save to the full deadline",
        _LEAVING,
        "ends = [*_ends_of_grace(draft), *_end_of_patience(draft, current)]",
        "ends = _ends_of_grace(draft)",
        ("death-while-leaving",),
    ),
    Mutant(
        "late members are waited for and never deleted",
        _LEAVING,
        "return _delete_late(draft, pods)",
        "return await_deleted(draft, pods)",
        ("suspended-with-some-hung",),
    ),
    Mutant(
        "a run that has lost a member is not named as lost to the others",
        _INTENTS,
        "seconds, lost = _last_seconds(draft, current), runs_lost_with(draft, current)",
        "seconds = _last_seconds(draft, current)",
        ("killed-without-patience",),
    ),
    Mutant(
        "a run whose members wait for a dead one is left to wait",
        _DISRUPTIONS,
        "if before not in status.lost or before in plan.lost or status.opened >= current.run:",
        "if True:",
        ("leaver-killed-saving",),
    ),
    Mutant(
        "a lost member of two runs makes only the newer one lost",
        _FACTS,
        "return add_lost_run(lost, plan.takes_over) if broken else lost",
        "return lost",
        ("scale", "party-killed"),
    ),
    Mutant(
        "cordons are not seen",
        _SIGNALS,
        "if node.cordoned and (row := in_force.find(SignalSource.CORDON)):",
        "if False and (row := in_force.find(SignalSource.CORDON)):",
        ("drain",),
    ),
    Mutant(
        "a node that is being deleted is not seen",
        _SIGNALS,
        "if (not node.exists or node.deleting) and (row := in_force.find(SignalSource.NODE_DELETION)):",
        "if not node.exists and (row := in_force.find(SignalSource.NODE_DELETION)):",
        ("node-deleted-without-taint",),
    ),
    Mutant(
        "an intent is never withdrawn, though nothing was said yet",
        _LEAVING,
        "return withdrawn(draft, intent, intent.nodes).update_current(intent=None).tell(Reason.WITHDRAWN, words)",
        "return draft.because(words)",
        ("cordon-for-a-moment",),
    ),
)
