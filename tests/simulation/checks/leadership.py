"""Only one replica of the operator works: whoever holds the Lease, while it lasts."""

from __future__ import annotations

from typing import Final

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise
from tests.simulation.objects import EVENTS, LEASES, Json

READS: Final = ("get", "list", "dry-run")


class Leadership(Promise):
    """Looked at when a write is sent: what is under way when a Lease ends may still arrive."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._renewed = -1e9

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

    def on_call(self, who: str, verb: str, kind: str) -> None:
        if verb in READS or kind in (EVENTS, LEASES):
            return
        lease = _spec(next(iter(self._world.server.each(LEASES)), None))
        holder, age = str(lease.get("holderIdentity") or ""), self._case.now - self._renewed
        if holder != who:
            self._case.fail("two-leaders", f"{who} sends a {verb} of {kind}, and {holder or 'nobody'} holds the Lease")
        elif age >= float(lease["leaseDurationSeconds"]):
            self._case.fail("two-leaders", f"{who} sends a {verb} of {kind}, its Lease is {age:.1f} s old")


def _spec(lease: Json | None) -> Json:
    return (lease or {}).get("spec") or {}
