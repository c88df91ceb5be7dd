"""Where a job is in its life, as a type: computed from status alone, once for each step of a round.

    BETWEEN ──names allocated──> STARTING ──all Ready, plan written──> RUNNING ──a signal──> QUIET
       ^                            ^                                   │  ^ │                 │
       │ every member has ended     │ and standbys are there            │  │ └──urgent──┐      │
       └────────────────────────────┴────────────────────── LEAVING <───┘  │            v      v
                                                               ^           └─── PREPARING: standbys start
                                                               └──too late──────┘   plan written: RUNNING, or
                                                                                    HANDING_OVER until there is evidence

and from anywhere to FINISHED. QUIET leads to LEAVING at once where no standby could take over.

`status.phase` is for people; nothing is decided from it.
"""

from __future__ import annotations

from enum import StrEnum

from perdure_operator.api.status import TrainingJobStatus


class Stage(StrEnum):
    """A job's stage."""

    BETWEEN = "between"  # no run is on, and no member is allocated
    STARTING = "starting"  # members of the next run are allocated, and not all of them are Ready
    RUNNING = "running"  # a run is on, and nothing asks it to end
    QUIET = "quiet"  # a signal was seen; it may still be withdrawn, and more may come
    PREPARING = "preparing"  # standbys start for members that have to leave; the others train on
    HANDING_OVER = "handing over"  # the next run's plan is told, and which of the two runs trains is not known
    LEAVING = "leaving"  # members are asked to save and leave, and are waited for
    FINISHED = "finished"  # Completed or Failed


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
