"""Bugs in reading how members ended, in what a run has cost and lost, and in the end of the job."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_DECIDE: Final = "operator/perdure_operator/decide/"
_BLAME: Final = f"{_DECIDE}blame.py"
_ENDING: Final = f"{_DECIDE}ending.py"
_FACTS: Final = f"{_DECIDE}facts.py"
_GATES: Final = f"{_DECIDE}gates.py"
_MEMBERS: Final = f"{_DECIDE}members.py"
_PLANS: Final = f"{_DECIDE}plans.py"
_OUTCOMES: Final = f"{_DECIDE}outcomes.py"
_CONTRACT: Final = "runtime/perdure/wire/outcome.py"

ENDING: Final = (
    Mutant(
        "members are made for a job that a finalizer keeps",
        _GATES,
        "    if not draft.snapshot.deleting:\n        return draft\n    message =",
        "    if True:\n        return draft\n    message =",
        ("foreground-and-apply",),
    ),
    Mutant(
        "successors are made for the members of a job that is being deleted",
        _GATES,
        "if draft.snapshot.spec.suspend or draft.snapshot.deleting or _is_over(draft):",
        "if draft.snapshot.spec.suspend or _is_over(draft):",
        ("foreground-and-apply",),
    ),
    Mutant(
        "a server that says when to retry is called sooner",
        "operator/perdure_operator/loop/worker.py",
        "at_least=wait or 0.0)",
        "at_least=0.0)",
        ("api-throttles", "drain"),
    ),
    Mutant(
        "a forbidden call is retried at once",
        "operator/perdure_operator/loop/worker.py",
        "delay = self._queue.failed(job, at_least=at_least)",
        'if "forbidden" in str(values):\n            self._queue.done(job)\n'
        "            return self._queue.add(job)\n        delay = self._queue.failed(job, at_least=at_least)",
        ("namespace-deleted",),
    ),
    Mutant(
        "the exit of an init container is charged to infrastructure",
        _OUTCOMES,
        "infrastructure=_killed(pod) or ended.exit_code in _SIGNALLED,",
        "infrastructure=True,",
        ("before-the-trainer",),
    ),
    Mutant(
        "an init container that was killed is a failure of the code",
        _OUTCOMES,
        "infrastructure=_killed(pod) or ended.exit_code in _SIGNALLED,",
        "infrastructure=False,",
        ("before-the-trainer",),
    ),
    Mutant(
        "a failure of the code is blamed even if another member died first",
        _BLAME,
        "first = min(deaths, key=order_of_death, default=None)",
        "first = min(deaths, key=lambda one: one.infrastructure, default=None)",
        ("kill-pod", "peers-blame-themselves"),
    ),
    Mutant(
        "members deleted for being late do not count as late",
        _ENDING,
        "late=planned and _is_late(draft, intent)",
        "late=False",
        ("suspended-with-some-hung",),
    ),
    Mutant(
        "steps of another run are lost by this one",
        _ENDING,
        "mine = [one for one in told if one.run == of]",
        "mine = told",
        ("foreign-outcome",),
    ),
    Mutant(
        "another run's final commit is taken for this one's",
        _FACTS,
        "return any(one.run == number and one.outcome in _SAVED_IN_LOG for one in run.outcomes)",
        "return any(one.outcome in _SAVED_IN_LOG for one in run.outcomes)",
        ("foreign-outcome",),
    ),
    Mutant(
        "the completion of an older run completes the job",
        _ENDING,
        "if one.outcome == ExitKind.COMPLETED and one.run >= newest]",
        "if one.outcome == ExitKind.COMPLETED]",
        ("foreign-outcome",),
    ),
    Mutant(
        "any member that was stopped is believed to have closed the run in the log",
        _FACTS,
        "any(one.name == first and one.outcome == ExitKind.STOPPED for one",
        "any(one.outcome == ExitKind.STOPPED for one",
        ("stopped-by-hand",),
    ),
    Mutant(
        "the outcome of another pod of a member's name is believed",
        _OUTCOMES,
        "if pod is None or pod.uid != member.uid:",
        "if pod is None:",
        ("replaced-pod",),
    ),
    Mutant(
        "steps lost are not summed over runs",
        _ENDING,
        "steps_lost=status.steps_lost + cost.steps,",
        "steps_lost=cost.steps,",
        ("kill-pod", "code-failure"),
    ),
    Mutant(
        "steps lost are counted from the last commit but one",
        _ENDING,
        "kept = max(commits)[1] if commits else draft.status.step or 0",
        "kept = min(commits)[1] if commits else draft.status.step or 0",
        ("behind-the-others",),
    ),
    Mutant(
        "a run that ended without a report is not remembered as lost",
        _ENDING,
        "lost=add_lost_run(status.lost, run.run) if unfinished else status.lost)",
        "lost=status.lost)",
        ("killed-without-patience",),
    ),
    Mutant(
        "a pod's owner can use up all run numbers",
        _CONTRACT,
        "return value if type(value) is int and 0 <= value <= OPENED_AT_MOST else 0",
        "return value if type(value) is int and 0 <= value else 0",
        ("absurd-outcome",),
    ),
    Mutant(
        "the runs that outcomes saw in the log do not count for the next run's number",
        _OUTCOMES,
        "return max([known, *(outcome.opened for pod in pods.values() if (outcome := outcome_in(pod)))])",
        "return known",
        ("log-is-ahead",),
    ),
    Mutant(
        "a run is planned with a number that the log has seen",
        _PLANS,
        "run = max(upcoming.run, status.opened + 1, given + 1)",
        "run = upcoming.run",
        ("log-is-ahead",),
    ),
    Mutant(
        "runs do not get the commit that they must find",
        _PLANS,
        "return Floor(seq=status.commit_seq, step=status.step)",
        "return None",
        ("emptied-while-suspended",),
    ),
    Mutant(
        "a run that found an emptied log is not remembered",
        _BLAME,
        "return draft.update(log_lost=lost)",
        "return draft",
        ("emptied-while-suspended",),
    ),
    Mutant(
        "new members are created while the log is lost",
        _GATES,
        "return _without_standbys(draft).block(Reason.LOG_LOST, message, again)",
        "return draft.because(message)",
        ("emptied-while-suspended",),
    ),
    Mutant(
        "an out-of-memory kill is not distinguished from any other",
        _OUTCOMES,
        'return pod.terminated is not None and pod.terminated.reason == "OOMKilled"',
        "return False",
        ("out-of-memory",),
    ),
    Mutant(
        "out-of-memory kills in a row are not counted",
        _BLAME,
        "in_a_row = old.out_of_memory + 1 if step <= old.out_of_memory_step or not old.out_of_memory else 1",
        "in_a_row = 1",
        ("out-of-memory",),
    ),
    Mutant(
        "failures of infrastructure are not counted",
        _BLAME,
        '"infrastructure_in_a_row": old.infrastructure_in_a_row + infrastructure,',
        '"infrastructure_in_a_row": old.infrastructure_in_a_row,',
        ("kill-pod",),
    ),
    Mutant(
        "each failure is retried after a second, without back-off",
        _BLAME,
        "return doubled(failures.last_time, failures.consecutive)",
        "return doubled(failures.last_time, 1)",
        ("code-failure", "out-of-memory"),
    ),
    Mutant(
        "a member is over only when its sidecars are",
        _FACTS,
        'return pod.gone or pod.terminated is not None or pod.phase in ("Succeeded", "Failed")',
        'return pod.gone or pod.phase in ("Succeeded", "Failed")',
        ("sidecar", "scale"),
    ),
    Mutant(
        "a finished job keeps pods whose sidecars run",
        _MEMBERS,
        "kept = [pod for pod in own(draft.snapshot).values() if lingers(pod) and not pod.deleting]",
        "kept = [pod for pod in own(draft.snapshot).values() if lingers(pod) and pod.deleting]",
        ("sidecar", "scale"),
    ),
    Mutant(
        "a finished job never ends the pods that still run",
        _MEMBERS,
        "late = draft.now >= later(since, patience)",
        "late = False",
        ("hung-at-the-end",),
    ),
    Mutant(
        "status claims that a job runs while it waits for something",
        f"{_DECIDE}summary.py",
        "return draft.waiting is None or (draft.waiting.reason is Reason.ASSIGNING and _offers(draft))",
        "return True",
        ("all-kubelets-silent",),
    ),
    Mutant(
        "a process that exits 0 without a Session completes the job",
        "operator/perdure_operator/cluster/member.py",
        "Env.COMPLETION: job.spec.completion.value,",
        'Env.COMPLETION: "ExitCode",',
        ("restarted-without-session",),
    ),
)
