"""A run's plan can be carried out: written once all its members are Ready, with an address that is rank 0's own."""

from __future__ import annotations

from tests.simulation.apiserver import Change
from tests.simulation.checks.case import Case, Promise, by_operator
from tests.simulation.checks.reading import plan_of, status_of
from tests.simulation.objects import JOBS, PODS, Json, key_of, uid_of


class Plans(Promise):
    """Looked at when status first has them."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._ports: dict[str, tuple[int, str]] = {}
        """By uid of the job: run and port of its newest plan."""

    def on_change(self, change: Change) -> None:
        if change.kind != JOBS or change.old is None or not by_operator(change) or change.event == "DELETED":
            return
        plan = plan_of(status_of(change.raw))
        if plan and plan != plan_of(status_of(change.old)):
            self._check(change.raw, plan)

    def _check(self, job: Json, plan: Json) -> None:
        uid, (namespace, name), run = uid_of(job), key_of(job), int(plan["run"])
        address, _, port = str(plan["master"]).rpartition(":")
        first = self._world.server.find(PODS, namespace, plan["members"][0]["name"])
        stored = str(((first or {}).get("status") or {}).get("podIP") or "")
        if not address or (stored and address != stored):
            words = f"run {run} is to meet at {plan['master']}, its first member is at {stored or 'no address yet'}"
            self._case.fail("master", f"{name}: {words}")
        before, last = self._ports.get(uid, (0, ""))
        if before != run and port == last:
            self._case.fail("master", f"{name}: run {run} has the port {port} of run {before}, which may still listen")
        self._ports[uid] = run, port
        each = int(plan["world"]) // len(plan["members"])
        if [one["rank"] for one in plan["members"]] != list(range(0, int(plan["world"]), each)):
            self._case.fail("master", f"{name}: run {run} has the ranks {[one['rank'] for one in plan['members']]}")
