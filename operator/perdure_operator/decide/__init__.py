"""`decide(snapshot) -> plan`: everything the operator ever decides, as pure policies in one fixed order.

Total and deterministic: no I/O, no clock, no randomness, no logging. Each policy takes a Draft and returns one, which
is the same where it has nothing to say. The status of the draft becomes the first write of the round, so a policy may
act on what an earlier one has just put there. Called by `loop.worker` and by `perdure-operator explain`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from perdure_operator.decide.budget import protect, relax
from perdure_operator.decide.closing import close_run
from perdure_operator.decide.completion import complete
from perdure_operator.decide.discard import discard
from perdure_operator.decide.disruption import disrupt
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.endings import record_endings
from perdure_operator.decide.facts import set_free
from perdure_operator.decide.finished import keep_finished
from perdure_operator.decide.gates import back_off, check_template, keep_root_to_one_job, wait_for_predecessor
from perdure_operator.decide.promotion import assign, promote
from perdure_operator.decide.standbys import allocate, create, replace_unfit
from perdure_operator.decide.summary import summarise
from perdure_operator.decide.suspension import expire, release, suspend
from perdure_operator.decide.unready import track_unready_nodes
from perdure_operator.decide.vacate import vacate
from perdure_operator.state.decision import Decision
from perdure_operator.state.snapshot import Snapshot

Policy = Callable[[Draft], Draft]

POLICIES: Final[tuple[Policy, ...]] = (
    track_unready_nodes,  # since when is each node under a pod unreachable
    # the run that is on
    record_endings,  # how members ended
    complete,  # one `completed` ends the job
    disrupt,  # why the run has to end, and since when its members know
    vacate,  # ask, wait, delete the late ones
    close_run,  # everybody is gone: count what it cost
    # between two runs
    release,  # no run follows for a job that is being deleted
    replace_unfit,  # standbys that cannot train, and what they cost
    expire,  # activeDeadlineSeconds
    keep_finished,  # nothing follows for a finished job
    suspend,
    wait_for_predecessor,
    keep_root_to_one_job,
    check_template,
    back_off,
    # the next run
    allocate,  # names to status
    discard,  # pods without a run
    protect,  # the budget before pods and labels
    create,
    promote,  # all Ready: the plan to status
    assign,  # ranks to the pods
    relax,
)

INCOMPLETE_SECONDS: Final = 1.0


def decide(snapshot: Snapshot) -> Decision:
    """One round's work for one job."""
    if snapshot.deleting and set_free(snapshot):
        return Decision(reasons=("the job is being deleted and its pods are to outlive it: nothing is done to them",))
    if not (snapshot.pods_complete and snapshot.nodes_complete):
        reason = "pods or nodes have not been listed live: absence means nothing yet"
        return Decision(requeue_after=INCOMPLETE_SECONDS, reasons=(reason,))
    draft = Draft(snapshot=snapshot, status=snapshot.status)
    for policy in POLICIES:
        if not draft.over:
            draft = policy(draft)
    return summarise(draft).decision()
