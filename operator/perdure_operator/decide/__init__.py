"""`decide(snapshot) -> decision`: everything the operator ever decides, on one screen.

Total and deterministic: no I/O, no clock, no randomness, no logging. A policy takes a Draft and returns one, unchanged
if it has nothing to decide. A round runs ALWAYS, then the table of the job's stage (and of the stage that this leads
to), then WRITES: the writes that follow from status, in any stage. Status is written first, so a policy may rely on
what an earlier one has just put there. Each story has one file of policies, and these files never import each other.
Called by `loop.worker` and by `perdure-operator explain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.decide.accounting import keep_account
from perdure_operator.decide.budget import protect, relax
from perdure_operator.decide.clock_skew import correct_times
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.ending import close_previous, close_run, complete, record_leavers, record_outcomes
from perdure_operator.decide.eviction_responses import answer
from perdure_operator.decide.facts import orphaned
from perdure_operator.decide.gates import (
    back_off,
    expire,
    keep_log,
    keep_root_to_one_job,
    release,
    release_successors,
    suspend,
    wait_for_predecessor,
    wait_for_root,
    watch_deadline,
)
from perdure_operator.decide.handing_over import confirm, resolve_handover
from perdure_operator.decide.leaving import (
    ask_to_leave,
    debounce,
    detect_disruption,
    name_leavers,
    note_vacate,
    tell_leavers,
    track_unready_nodes,
    wait_for_exits,
)
from perdure_operator.decide.members import (
    allocate,
    allocate_ahead,
    assign,
    create,
    discard,
    keep_finished,
    mark,
    relabel,
)
from perdure_operator.decide.nudging import nudge
from perdure_operator.decide.preparing import (
    give_up,
    let_settle,
    reconsider,
    stop_growing,
    take_over,
    take_over_with_fewer,
    train_on,
)
from perdure_operator.decide.saving import ask_for_save
from perdure_operator.decide.sizing import back_off_growth
from perdure_operator.decide.standby_pool import keep_spares, take_spares
from perdure_operator.decide.starting import pace, promote, promote_fewer, release_gang, replace_unfit, rest_of_gang
from perdure_operator.decide.summary import summarise
from perdure_operator.decide.template import check_template, keep_template, try_template, warn_of_sidecars
from perdure_operator.state.decision import CheckTemplate, Decision
from perdure_operator.state.snapshot import Snapshot


class Stage(StrEnum):
    """Where a job is in its life, computed from status alone, once for each step of a round.

    BETWEEN ──names allocated──> STARTING ──all Ready, plan written──> RUNNING ──a signal──> QUIET
       ^                            ^                                   │  ^ │                 │
       │ every member has ended     │ and standbys are there            │  │ └──urgent──┐      │
       └────────────────────────────┴────────────────────── LEAVING <───┘  │            v      v
                                                               ^           └─── PREPARING: standbys start
                                                               └──too late──────┘   plan written: RUNNING, or
                                                                                    HANDING_OVER until there is evidence

    Every stage can lead to FINISHED. QUIET leads to LEAVING at once if no standby could take over. `status.phase` is
    for people: nothing is decided from it.
    """

    BETWEEN = "between"  # no run is on, and no member is allocated
    STARTING = "starting"  # members of the next run are allocated, and not all of them are Ready
    RUNNING = "running"  # a run is on, and nothing asks it to end
    QUIET = "quiet"  # a signal was seen; it may still be withdrawn, and more may follow
    PREPARING = "preparing"  # standbys start for members that have to leave; the others train on
    HANDING_OVER = "handing over"  # members have the next run's plan; it is not known which of the two runs trains
    LEAVING = "leaving"  # members are asked to save and leave; the job waits for them
    FINISHED = "finished"  # Completed or Failed


Policy = Callable[[Draft], Draft]

ALWAYS: Final[tuple[Policy, ...]] = (
    correct_times,  # nothing in status is ahead of now
    note_vacate,  # which members a person wants moved
    track_unready_nodes,  # since when each node under a pod is unreachable
    record_outcomes,  # how members of the current run ended
    record_leavers,  # and members that left it
    confirm,  # which run is on
    complete,  # one `completed` ends the job
    close_previous,
    watch_deadline,
)
GATES: Final[tuple[Policy, ...]] = (
    suspend,  # before `expire`, as it resets the deadline
    expire,
    wait_for_predecessor,
    keep_root_to_one_job,
    keep_log,
    wait_for_root,
    check_template,
    back_off,
    rest_of_gang,
    pace,  # replacements of members that could not train
)
STAGES: Final[Mapping[Stage, tuple[Policy, ...]]] = {
    Stage.BETWEEN: (release, *GATES, warn_of_sidecars, allocate, promote),
    Stage.STARTING: (release, replace_unfit, *GATES, allocate, promote, promote_fewer, release_gang),
    Stage.RUNNING: (name_leavers, try_template, back_off_growth, detect_disruption),
    Stage.QUIET: (debounce,),
    Stage.PREPARING: (
        close_previous,  # if all its members had ended when this run took over: its cost paces new members
        reconsider,
        replace_unfit,  # standbys
        take_spares,  # before `pace`, which only holds back new members
        keep_root_to_one_job,
        check_template,
        back_off,
        pace,
        let_settle,
        allocate,
        take_over,
        take_over_with_fewer,
        stop_growing,
        give_up,
        train_on,
        close_previous,  # if all its members have ended
    ),
    Stage.HANDING_OVER: (try_template, resolve_handover),
    Stage.LEAVING: (
        replace_unfit,  # members of the next run
        wait_for_exits,
        close_run,
        check_template,  # the first gate: who edits the template learns at once that it is refused
        release_successors,
        wait_for_predecessor,
        keep_root_to_one_job,
        wait_for_root,
        back_off,
        pace,
        allocate_ahead,
    ),
    Stage.FINISHED: (keep_finished, answer),
}
LEADS_TO: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.RUNNING: frozenset({Stage.QUIET, Stage.PREPARING, Stage.LEAVING}),
    Stage.QUIET: frozenset({Stage.PREPARING, Stage.LEAVING}),
    Stage.PREPARING: frozenset({Stage.LEAVING}),
    Stage.HANDING_OVER: frozenset({Stage.RUNNING, Stage.PREPARING}),
    Stage.LEAVING: frozenset({Stage.BETWEEN, Stage.STARTING}),
}
"""The stages in which the same round may continue, beside FINISHED."""
WRITES: Final[tuple[Policy, ...]] = (
    answer,  # before an ended pod is deleted
    relabel,  # before any other change of a pod
    ask_to_leave,
    keep_spares,
    discard,  # pods without a run
    ask_for_save,  # the request is part of the assignment
    protect,  # the budget before pods and labels
    create,
    assign,  # ranks to the pods
    tell_leavers,  # those of the previous run
    relax,
    mark,  # by the roles that the writes above give
    nudge,  # members that get no write above
    keep_template,  # last, as nothing depends on it
)

FINISHED: Final = frozenset({Stage.FINISHED})
INCOMPLETE_SECONDS: Final = 1.0
_UNWRITTEN: Final = TrainingJobStatus()


def decide(snapshot: Snapshot) -> Decision:
    """One round's work for one job."""
    if snapshot.deleting and orphaned(snapshot):
        return Decision(reasons=("the job is being deleted and its pods are to outlive it: nothing is done to them",))
    if not (snapshot.pods_complete and snapshot.nodes_complete):
        reason = "pods or nodes have not been listed live: absence means nothing yet"
        return Decision(requeue_after=INCOMPLETE_SECONDS, reasons=(reason,))
    draft = _in_turn(Draft(snapshot=snapshot, status=snapshot.status), ALWAYS)
    draft = _through_stages(draft)
    if stage_of(draft.status) is not Stage.FINISHED:
        draft = _in_turn(draft, WRITES)
    draft = keep_account(draft)
    decision = summarise(draft).decision()
    if _awaits_first_dry_run(draft):
        return decision.model_copy(update={"status": None, "events": ()})
    return decision


def stage_of(status: TrainingJobStatus) -> Stage:
    """The stage that this status is in."""
    if status.finished_at:
        return Stage.FINISHED
    if status.current is None:
        return Stage.STARTING if status.next and status.next.members else Stage.BETWEEN
    if status.current.intent is None:
        return Stage.RUNNING
    if status.current.intent.leave:
        return Stage.LEAVING
    if not status.current.intent.prepare:
        return Stage.QUIET
    return Stage.HANDING_OVER if status.next and status.next.plan else Stage.PREPARING


def _awaits_first_dry_run(draft: Draft) -> bool:
    """Whether a new job still waits for the first dry run of its template: its first status shows that result.

    A job that has pods is not new: its status was lost, and people read what happens to the pods.
    """
    new = draft.snapshot.status == _UNWRITTEN and draft.snapshot.template_check.time is None
    only_asks = all(isinstance(action, CheckTemplate) for action in draft.actions)
    return new and only_asks and draft.waiting is not None and draft.waiting.reason is Reason.CHECKING_TEMPLATE


def _through_stages(draft: Draft) -> Draft:
    stage = stage_of(draft.status)
    while True:
        leads_to = LEADS_TO.get(stage, frozenset()) | {Stage.FINISHED}
        draft = _in_turn(draft, STAGES[stage], leads_to)
        new = stage_of(draft.status)
        if new is stage or new not in leads_to:
            return draft
        stage = new


def _in_turn(draft: Draft, policies: Iterable[Policy], leads_to: frozenset[Stage] = FINISHED) -> Draft:
    """Run one policy after the other, until one of them leads to a stage with its own policies."""
    began = stage_of(draft.status)
    for policy in policies:
        before = draft.status
        draft = policy(draft.by(policy.__name__))
        if draft.status is not before and (new := stage_of(draft.status)) is not began and new in leads_to:
            break
    return draft
