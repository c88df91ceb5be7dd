"""Which writes of a round go out together, and which depend on which: a failure blocks only its dependents. Pure.

    CreatePod            the budget, the pods before it (a quota that refuses one refuses the next), and if it is
                         created apart, the labels of the former members it keeps away from
    Assign to `member`   the budget: first raise it, then label the pod
    DeletePod            an earlier assignment of the same pod
    all others           nothing: a request to leave, a deletion, a dry run, the budget itself

Called by `act`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from perdure.wire import Role
from perdure_operator.cluster.batching import AT_ONCE
from perdure_operator.cluster.protocol import Unavailable
from perdure_operator.state.decision import Action, Answer, Assign, CheckTemplate, CreatePod, DeletePod, Mark, SetBudget
from perdure_operator.state.snapshot import PodView

_WEBHOOK_FAILED: Final = 500
"""The server answers, but a webhook for this write does not."""


def batches(actions: Iterable[Action]) -> Iterator[Sequence[Action]]:
    """Batches of consecutive writes of one kind. The dry run comes last, because webhooks may delay it."""
    in_turn = sorted(actions, key=lambda action: isinstance(action, CheckTemplate))
    for kind, group in groupby(in_turn, key=type):
        alike, most = list(group), AT_ONCE if kind in (Answer, Assign, CreatePod, DeletePod, Mark) else 1
        yield from (alike[first : first + most] for first in range(0, len(alike), most))


def held_up(action: Action, failed: Iterable[Action], pods: Mapping[str, PodView]) -> bool:
    """Whether a write depends on a failed one; `pods` are the job's pods by uid."""
    return any(_rests_on(action, earlier, pods) for earlier in failed)


def unanswered(answers: Sequence[BaseException | None]) -> bool:
    """Whether the server itself does not answer or is overloaded: each further write would only wait as long."""
    return all(isinstance(one, Unavailable) and one.status != _WEBHOOK_FAILED for one in answers)


def _rests_on(action: Action, earlier: Action, pods: Mapping[str, PodView]) -> bool:
    match action:
        case CreatePod():
            former = action.apart and isinstance(earlier, Assign) and earlier.role == Role.FORMER
            return former or isinstance(earlier, SetBudget | CreatePod)
        case Assign(role=Role.MEMBER, uid=uid):
            counted = uid in pods and pods[uid].role == Role.MEMBER
            return isinstance(earlier, SetBudget) and not counted
        case DeletePod(uid=uid):
            return isinstance(earlier, Assign) and earlier.uid == uid
        case _:
            return False
