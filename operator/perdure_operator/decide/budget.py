"""The PodDisruptionBudget: minAvailable is never below the number of pods labelled `member`.

Raise, then label; unlabel, then lower: while a run goes on in living pods, both leavers and newcomers count.
An eviction is refused while a member runs and passes once it has terminated.
"""

from __future__ import annotations

from perdure.wire import Role
from perdure_operator.api.reasons import Reason
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import own, terminated
from perdure_operator.state.decision import SetBudget


def protect(draft: Draft) -> Draft:
    """Raise the budget before pods are created or labelled."""
    budget, wanted = draft.snapshot.budget, _wanted(draft)
    if not wanted or (budget and not budget.altered and budget.min_available >= wanted):
        return draft
    if budget and (budget.altered or budget.min_available < 0):
        words = f"the job's PodDisruptionBudget was changed ({budget.altered}); it is restored"
        draft = draft.tell(Reason.BUDGET_RESTORED, words, warning=True)
    return _set(draft, wanted)


def relax(draft: Draft) -> Draft:
    """Lower the budget after labels are gone: only the labels that the snapshot shows count.

    An altered one is put right in one write, by `protect`.
    """
    budget, wanted = draft.snapshot.budget, _wanted(draft)
    if wanted and budget is not None and not budget.altered and budget.min_available > wanted:
        return _set(draft, wanted)
    return draft


def _wanted(draft: Draft) -> int:
    """How many pods have to stay available; 0 if there is nothing to protect, and the budget stays as it is.

    Foreign pods that the budget counts come on top: each that is Ready would let one of the job's be evicted.
    """
    current, labelled, pods = draft.current, _labelled(draft), own(draft.snapshot)
    plans = [current.plan] if current else []
    plans += [draft.newest_plan] if draft.newest_plan else []
    names = {member.name for plan in plans for member in plan.members} if plans else set(draft.next_members)
    in_place = any(plan.takes_over for plan in plans)
    # Pods that are about to get the label count as well as those that have it and may live, for any reason.
    counted = labelled if in_place else {name for name in labelled if not terminated(pods[name])}
    # The next run is planned in the round in which the last leaver has ended: its budget has to exist by then.
    following = len(draft.next_members) if draft.intent and draft.intent.leave else 0
    count = max(len(labelled), len(counted | names), following)
    return count + len(draft.snapshot.foreign_pods) if names else 0


def _labelled(draft: Draft) -> set[str]:
    return {pod.name for pod in own(draft.snapshot).values() if pod.role == Role.MEMBER and not pod.gone}


def _set(draft: Draft, wanted: int) -> Draft:
    budget = draft.snapshot.budget
    uid, version = (budget.uid, budget.resource_version) if budget else (None, "")
    action = SetBudget(min_available=wanted, uid=uid, resource_version=version)
    why = f"the budget protects {wanted} members"
    return draft.act(why, action).because(why)
