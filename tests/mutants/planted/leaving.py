"""Bugs in noticing that members have to leave, in telling them, and in waiting for them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

LEAVING: Final = (
    Mutant(
        "most nodes not Ready at once are taken for as many dead nodes",
        "perdure_operator.decide:in_outage",
        "return zone.ready > 0 and down > 2 and (down / (down + zone.ready) >= _OUTAGE_SHARE)",
        "return False",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "no node Ready at all is not taken for an outage",
        "perdure_operator.decide:in_outage",
        "if snapshot.zones and (not any((zone.ready for zone in snapshot.zones))):",
        "if not snapshot.zones:",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "an outage changes nothing in when members are given up",
        "perdure_operator.decide:given_up_at",
        "if not unready.outage:",
        "if unready:",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "members are given up while no node is Ready to take others",
        "perdure_operator.decide:given_up_at",
        "if not any((zone.ready for zone in draft.snapshot.zones)):",
        "if not draft.snapshot.zones:",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "after a long outage all nodes are given up at once",
        "perdure_operator.decide:_give_up_one",
        "unready=tuple(marked), given_up=draft.now)",
        "unready=tuple(marked))",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "the time of an outage counts against a node once it is over",
        "perdure_operator.decide:_unready",
        "if old is None or (old.outage and (not outage)):",
        "if old is None:",
        ("all-kubelets-silent", "node-power"),
    ),
    Mutant(
        "the nodes of terminating pods are not observed",
        "perdure_operator.decide:track_unready_nodes",
        "occupied = {pod.node for pod in pods if pod.node and (not terminated(pod))}",
        "occupied = {pod.node for pod in pods if pod.node and (not pod.deleting) and (not terminated(pod))}",
        ("node-dies-under-deleted",),
    ),
    Mutant(
        "the deadline is looked at before the suspension, between runs",
        "perdure_operator.decide:GATES",
        "suspend, expire",
        "expire, suspend",
        ("deadline-while-saving",),
    ),
    Mutant(
        "the deadline is looked at before the suspension, in a run",
        "perdure_operator.decide:reason_to_end",
        "(_faulty, _lost, _waits_for_the_dead, _deleted, _suspended, _expired, _nodes_leaving, _resized)",
        "(_faulty, _lost, _waits_for_the_dead, _deleted, _expired, _suspended, _nodes_leaving, _resized)",
        ("deadline-while-saving", "operator-crash"),
    ),
    Mutant(
        "a suspension does not restart the deadline",
        "perdure_operator.decide:suspend",
        "_without_members(draft).update(start_time=None).block(",
        "_without_members(draft).block(",
        ("deadline-while-saving",),
    ),
    Mutant(
        "a member that outlives its grace is waited for with a deadline in the past",
        "perdure_operator.decide:past_their_grace",
        "return [pod for pod in pods if (end := stuck_at(pod)) and end <= draft.now]",
        "return []",
        ("deleted-and-stuck",),
    ),
    Mutant(
        "a member whose annotation admission refuses is never asked in another way",
        "perdure_operator.decide:cannot_be_asked",
        "return [pod for pod in pods if refused_change(draft, pod.name)]",
        "return []",
        ("suspended-unheard",),
    ),
    Mutant(
        "status waits for the exit save of members that could not be asked",
        "perdure_operator.decide:wait_for_exits",
        "await_refused(draft, not_asked, 'asked to leave')",
        "await_refused(draft, (), 'asked to leave')",
        ("suspended-unheard",),
    ),
    Mutant(
        "the peers of a deleted member are given longer than its grace",
        "perdure_operator.decide:_shorten",
        "ends = [*_ends_of_grace(draft), *_end_of_patience(draft, current)]",
        "ends = _end_of_patience(draft, current)",
        ("suspended-while-one-goes",),
    ),
    Mutant(
        "members whose peer is lost may save to the full deadline",
        "perdure_operator.decide:_shorten",
        "ends = [*_ends_of_grace(draft), *_end_of_patience(draft, current)]",
        "ends = _ends_of_grace(draft)",
        ("death-while-leaving",),
    ),
    Mutant(
        "late members are waited for and never deleted",
        "perdure_operator.decide:wait_for_exits",
        "return _delete_late(draft, pods)",
        "return await_deleted(draft, pods)",
        ("suspended-with-some-hung",),
    ),
    Mutant(
        "a run that has lost a member is not named as lost to the others",
        "perdure_operator.decide:leave_at_once",
        "seconds, lost = (_last_seconds(draft, current), runs_lost_with(draft, current))",
        "seconds = _last_seconds(draft, current)",
        ("killed-without-patience",),
    ),
    Mutant(
        "a run whose members wait for a dead one is left to wait",
        "perdure_operator.decide:_waits_for_the_dead",
        "if before not in status.lost or before in plan.lost or status.opened >= current.run:",
        "if True:",
        ("leaver-killed-saving",),
    ),
    Mutant(
        "a lost member of two runs makes only the newer one lost",
        "perdure_operator.decide:runs_lost_with",
        "return add_lost_run(lost, plan.takes_over) if broken else lost",
        "return lost",
        ("scale", "party-killed"),
    ),
    Mutant(
        "cordons are not seen",
        "perdure_operator.decide:_shown",
        "if node.cordoned and (row := in_force.find(SignalSource.CORDON)):",
        "if False and (row := in_force.find(SignalSource.CORDON)):",
        ("drain",),
    ),
    Mutant(
        "a node that is being deleted is not seen",
        "perdure_operator.decide:_shown",
        "if (not node.exists or node.deleting) and (row := in_force.find(SignalSource.NODE_DELETION)):",
        "if not node.exists and (row := in_force.find(SignalSource.NODE_DELETION)):",
        ("node-deleted-without-taint",),
    ),
    Mutant(
        "an intent is never withdrawn, though nothing was said yet",
        "perdure_operator.decide:debounce",
        "withdrawn(draft, intent, intent.nodes).update_current(intent=None).tell(Reason.WITHDRAWN, words)",
        "draft.because(words)",
        ("cordon-for-a-moment",),
    ),
)
