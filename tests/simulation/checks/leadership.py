"""Only one replica of the operator works, the holder of the Lease while it lasts; and one round of a job at a time.

A round is over when each of its writes has been answered: the next one would not see those still in flight.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise
from tests.simulation.objects import EVENTS, JOBS, LEASES, PODS, Json, key_of, labels_of

READS: Final = ("get", "list", "dry-run")


class Leadership(Promise):
    """Checked when a write is sent: one in flight when a Lease ends may still arrive."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._renewed = -1e9
        self._waiting: dict[tuple[str, str], list[tuple[str, str, str, float]]] = defaultdict(list)
        """By replica and job: verb, kind, name and time of writes without an answer."""
        self._jobs: dict[str, str] = {}
        """By pod: its owner at the last write to it."""

    def on_change(self, change: Change) -> None:
        if change.kind != LEASES:
            return
        before, after = _spec(change.old), _spec(change.raw)
        age = self._case.now - self._renewed
        self._renewed = self._case.now
        held = str(before.get("holderIdentity") or "")
        if held and after.get("holderIdentity") not in (held, "") and age < float(before["leaseDurationSeconds"]):
            words = f"{after['holderIdentity']} takes the Lease that {held} has renewed {age:.1f} s ago"
            self._case.fail("two-leaders", words)

    def on_call(self, who: str, verb: str, kind: str, name: str) -> None:
        if verb == "list" and kind == PODS:
            self._check_look(who, name.partition("=")[2])
        if verb in READS or kind in (EVENTS, LEASES):
            return
        lease = _spec(next(iter(self._world.server.each(LEASES)), None))
        holder, age = str(lease.get("holderIdentity") or ""), self._case.now - self._renewed
        if holder != who:
            self._case.fail("two-leaders", f"{who} sends a {verb} of {kind}, and {holder or 'nobody'} holds the Lease")
        elif age >= float(lease["leaseDurationSeconds"]):
            self._case.fail("two-leaders", f"{who} sends a {verb} of {kind}, its Lease is {age:.1f} s old")
        self._check_rounds(who, verb, kind, name)

    def _check_rounds(self, who: str, verb: str, kind: str, name: str) -> None:
        """Writes sent together are sent at one moment; all of them have been answered before any other is sent."""
        if kind not in (JOBS, PODS):
            return
        if kind == PODS:
            pod = next((one for one in self._world.server.each(PODS) if key_of(one)[1] == name), None)
            named = labels_of(pod).get("perdure.dev/job") if pod else None  # another owner's may have the name
            self._jobs[name] = named or name.rsplit("-", 2)[0]
        waiting = self._waiting[who, self._jobs.get(name, name)]
        others = [one for one in waiting if self._case.now - one[3] > 0.0]
        if others:
            words = f"{who} sends a {verb} of {name} while its {others[0][0]} of {others[0][2]} is under way"
            self._case.fail("two-rounds", words)
        waiting.append((verb, kind, name, self._case.now))

    def _check_look(self, who: str, job: str) -> None:
        """A round begins with a look, once everything that the last round sent is answered: otherwise it looks too
        early."""
        waiting = [one for one in self._waiting.get((who, job), ()) if self._case.now - one[3] > 0.0]
        if waiting:
            words = f"{who} looks at the pods of {job} while its {waiting[0][0]} of {waiting[0][2]} is under way"
            self._case.fail("two-rounds", words)

    def on_answer(self, who: str, verb: str, kind: str, name: str, wrong: str) -> None:  # noqa: ARG002
        waiting = self._waiting[who, self._jobs.get(name, name)]
        waiting[:] = [one for one in waiting if one[:3] != (verb, kind, name)]


def _spec(lease: Json | None) -> Json:
    return (lease or {}).get("spec") or {}
