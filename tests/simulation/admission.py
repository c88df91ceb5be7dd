"""The API server's admission of an object before it is stored: defaults, validation, quotas and webhooks' refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.simulation.objects import BUDGETS, EVENTS, JOBS, NOT_READY, PODS, UNREACHABLE, Json, Refused, terminal
from tests.simulation.resources import Amounts, lacking, left, requests

PROXY: Final = "mesh-proxy"
PREEMPTS: Final = "PreemptLowerPriority"


class PriorityClass(NamedTuple):
    """What a PriorityClass's name means for a pod."""

    value: int
    preemption: str = PREEMPTS


CLASSES: Final[Mapping[str, PriorityClass]] = MappingProxyType(
    {
        "": PriorityClass(0),
        "low": PriorityClass(-5),
        "high": PriorityClass(100),
        "patient": PriorityClass(100, "Never"),
    }
)
"""There is no default class; "" is a pod that names none."""
_NAME: Final = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")


def _nothing(_: str) -> None:
    """Does nothing."""


@dataclass
class Policy:
    """The present refusals; faults change them."""

    pods_quota: int | None = None
    """At most so many pods that are not terminal in a namespace."""
    hard: dict[str, dict[str, float]] = field(default_factory=dict)
    """A ResourceQuota by namespace: the total that its non-terminal pods may request."""
    refuse_creates: str = ""
    """A webhook's message for every new pod; "" lets them pass."""
    refuse_patches: str = ""
    """A webhook's message for every patch of a pod."""
    refuse_budgets: str = ""
    refuse_status: str = ""
    """An answer to every write of a job's status."""
    refuse_deletes: str = ""
    """An answer to every deletion of a pod by the operator."""
    refuse_events: str = ""
    """An answer to every Event."""
    dry_run_passes: bool = False
    """The webhook lets dry runs pass."""
    ending: set[str] = field(default_factory=set)
    """Namespaces that are being deleted: nothing new is made in them."""
    mesh: bool = False
    """A webhook puts a container before those of every new pod; it never ends by itself."""
    pod_security: bool = False
    """The namespace enforces a level that no pod meets."""
    on_refusal: Callable[[str], object] = _nothing
    """Called with the source of each refusal: a fault that never refuses anything has not fired."""

    def heal(self) -> None:
        """Everything is admitted again that quotas leave room for."""
        self.__init__(hard=self.hard, on_refusal=self.on_refusal)  # type: ignore[misc]

    def admit_create(self, kind: str, raw: Json, others: list[Json], *, dry_run: bool) -> None:
        """Raises Refused. `others` are the namespace's objects of that kind."""
        namespace, name = str(raw["metadata"].get("namespace") or ""), raw["metadata"]["name"]
        if namespace in self.ending:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            self._refuse("namespace-ending", f'{kind} "{name}" is forbidden: {why}')
        if kind == BUDGETS and self.refuse_budgets:
            self._refuse("webhook-budget", self.refuse_budgets)
        if kind == EVENTS and self.refuse_events:
            self._refuse("api-refuses-event", self.refuse_events)
        if kind != PODS:
            return
        if self.pod_security:
            self._refuse("pod-security", f'pods "{raw["metadata"]["name"]}" is forbidden: violates PodSecurity')
        if self.refuse_creates and not (dry_run and self.dry_run_passes):
            self._refuse("webhook-pod", self.refuse_creates)
        used = sum(not terminal(one) for one in others)
        if self.pods_quota is not None and used >= self.pods_quota:
            sums = f"requested: pods=1, used: pods={used}, limited: pods={self.pods_quota}"
            self._refuse("quota", f'pods "{name}" is forbidden: exceeded quota: few, {sums}')
        self._admit_requests(raw, others)

    def _admit_requests(self, raw: Json, others: list[Json]) -> None:
        hard = self.hard.get(raw["metadata"].get("namespace") or "")
        if hard is None:
            return
        asked: Amounts = {name: number for name, number in requests(raw).items() if name in hard}
        rest = left(hard, (one for one in others if not terminal(one)))
        if name := lacking(asked, rest):
            sums = f"requested: requests.{name}={asked[name]:g}, used: requests.{name}={hard[name] - rest[name]:g}"
            words = f"exceeded quota: share, {sums}, limited: requests.{name}={hard[name]:g}"
            self._refuse("quota", f'pods "{raw["metadata"]["name"]}" is forbidden: {words}')

    def mutate(self, kind: str, raw: Json) -> None:
        """What webhooks make of a new object."""
        if kind == PODS and self.mesh:
            raw["spec"]["containers"] = [{"name": PROXY, "image": "proxy"}, *raw["spec"]["containers"]]

    def admit_update(self, kind: str) -> None:
        """Raises Refused."""
        if kind == PODS and self.refuse_patches:
            self._refuse("webhook-patch", self.refuse_patches)
        if kind == BUDGETS and self.refuse_budgets:
            self._refuse("webhook-budget", self.refuse_budgets)

    def admit_status(self, kind: str) -> None:
        """Raises Refused."""
        if kind == JOBS and self.refuse_status:
            self._refuse("api-refuses-status", self.refuse_status)

    def admit_delete(self, kind: str, by: str) -> None:
        """Raises Refused."""
        if kind == PODS and self.refuse_deletes and by.startswith("operator"):
            self._refuse("api-refuses-delete", self.refuse_deletes)

    def _refuse(self, what: str, words: str) -> None:
        self.on_refusal(what)
        raise Refused(403, "Forbidden", words)


def validate(kind: str, raw: Json) -> None:
    """As far as users of this world go wrong."""
    name = str(raw["metadata"].get("name", ""))
    if not _NAME.match(name):
        raise Refused(422, "Invalid", f"metadata.name: Invalid value: {name!r}")
    if kind == PODS:
        _validate_pod(raw)
    if kind == BUDGETS and {"minAvailable", "maxUnavailable"} <= set(raw.get("spec") or {}):
        raise Refused(422, "Invalid", "spec: minAvailable and maxUnavailable cannot be both set")


def _validate_pod(raw: Json) -> None:
    spec = raw.get("spec") or {}
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        raise Refused(422, "Invalid", "spec.containers: Required value")
    for index, one in enumerate(containers):
        if not one.get("image"):
            raise Refused(422, "Invalid", f"spec.containers[{index}].image: Required value")
        for variable in one.get("env") or ():
            if "value" in variable and not isinstance(variable["value"], str):
                raise Refused(422, "Invalid", f"spec.containers[{index}].env: value must be a string")


def _prioritise(spec: Json) -> None:
    """The admission plugin Priority: a pod has the value and the policy of its class, permanently."""
    name = str(spec.get("priorityClassName") or "")
    if name not in CLASSES:
        raise Refused(403, "Forbidden", f"pods are forbidden: no PriorityClass with name {name} was found")
    spec["priority"], spec["preemptionPolicy"] = CLASSES[name]


def defaulted(kind: str, raw: Json) -> Json:
    """In place, for a new object."""
    if kind != PODS:
        return raw
    spec = raw["spec"]
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = 30
    spec.setdefault("restartPolicy", "Always")
    _prioritise(spec)
    tolerations = spec["tolerations"] = list(spec.get("tolerations") or ())
    for key in (NOT_READY, UNREACHABLE):
        if not any(
            one.get("key") in (key, None, "") and one.get("effect") in ("NoExecute", None, "") for one in tolerations
        ):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    raw["status"] = {"phase": "Pending"}
    return raw
