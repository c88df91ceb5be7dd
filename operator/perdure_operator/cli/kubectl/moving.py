"""`kubectl perdure move --off`: which jobs are asked to leave nodes, and how. Pure.

The request is the job's annotation perdure.dev/vacate, as a user may write it by hand. The operator moves the members;
the command deletes and evicts nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from perdure_operator.api.default_signals import VACATE_ANNOTATION
from perdure_operator.api.model import Model
from perdure_operator.cli.kubectl.page import Page, Table
from perdure_operator.cli.kubectl.what_if import MoveOfJob, Rules, details, played
from perdure_operator.cluster.read.records import JobRecord
from perdure_operator.state import vacate_request
from perdure_operator.state.snapshot import PodView


@dataclass(frozen=True)
class JobThere:
    """A job and its pods on the nodes that it is to leave."""

    record: JobRecord
    pods: tuple[PodView, ...]
    """Those that have not ended."""


class LeaveRequest(Model):
    """What one job is asked."""

    namespace: str
    name: str
    pods: tuple[str, ...]
    """Its pods on these nodes."""
    nodes: tuple[str, ...]
    """The nodes that these pods are on."""
    vacate: str
    """The value of its annotation perdure.dev/vacate that asks for it."""
    asked_before: bool
    """Whether it has that annotation already."""
    withdraw: str
    """The words that withdraw the request, until members are asked to leave."""


class Withdrawal(Model):
    """What one job is not asked any more."""

    namespace: str
    name: str
    nodes: tuple[str, ...]
    """The nodes that its members need not leave any more."""
    vacate: str
    """What is left of its annotation perdure.dev/vacate; "" if nothing is."""


class Foretold(Model):
    """What the requests would do."""

    requests: tuple[LeaveRequest, ...]
    moves: tuple[MoveOfJob, ...]
    """What the jobs would do that were not asked before."""


def there(record: JobRecord, pods: Iterable[PodView], nodes: Sequence[str]) -> JobThere:
    """The job with those of these pods that are its own, on one of the nodes, and have not ended."""
    found = (pod for pod in pods if pod.owner_uid == record.uid and pod.node in nodes)
    return JobThere(record, tuple(pod for pod in found if not (pod.gone or pod.terminated)))


def request(job: JobThere, flags: Sequence[str] = ()) -> LeaveRequest:
    """What asks the job to leave the nodes of these pods, beside what it is asked already.

    `flags` are kubectl's own, as they were given.
    """
    (namespace, name), before = job.record.key, job.record.vacate
    nodes = tuple(sorted({pod.node for pod in job.pods}))
    all_of_it = vacate_request.moves_all(before)
    known = vacate_request.named(before)
    asked = (*known, *(node for node in nodes if node not in known))
    off = (word for node in nodes for word in ("--off", node))
    return LeaveRequest(
        namespace=namespace,
        name=name,
        pods=tuple(sorted(pod.name for pod in job.pods)),
        nodes=nodes,
        vacate=before if all_of_it else ",".join(asked),
        asked_before=not all_of_it and asked == known,
        withdraw=shlex.join(["kubectl", "perdure", "move", name, "--withdraw", *off, "-n", namespace, *flags]),
    )


def withdrawal(record: JobRecord, nodes: Sequence[str]) -> Withdrawal | None:
    """What asks the job for no more than is left without these nodes; None if it names none of them."""
    (namespace, name), known = record.key, vacate_request.named(record.vacate)
    mine = tuple(one for one in known if one in nodes)
    left = ",".join(one for one in known if one not in nodes)
    return Withdrawal(namespace=namespace, name=name, nodes=mine, vacate=left) if mine else None


def not_asked(record: JobRecord, nodes: Sequence[str]) -> str:
    """That the job is not asked to leave these nodes, in words."""
    namespace, name = record.key
    every = f": its annotation {VACATE_ANNOTATION}={record.vacate} names none" if record.vacate else ""
    return f"{namespace}/{name} is not asked to leave {', '.join(nodes)}{every}"


def refusal(job: JobThere, flags: Sequence[str] = ()) -> str:
    """Why the job cannot be asked to leave some nodes; "" if it can. `flags` as in `request`."""
    if not vacate_request.moves_all(job.record.vacate):
        return ""
    namespace, name = job.record.key
    return (
        f"{namespace}/{name} has the annotation {VACATE_ANNOTATION}=true, which asks all members to leave that were "
        "there when it was set; to name nodes, remove it first: "
        + shlex.join(["kubectl", "annotate", "trainingjob", name, "-n", namespace, f"{VACATE_ANNOTATION}-", *flags])
    )


def nobody(nodes: Sequence[str], namespace: str | None, does: str = "has a pod on") -> str:
    """That no job has pods there, or does what else the words say, in words."""
    where = f" in {namespace} namespace" if namespace else ""
    return f"No training job{where} {does} {', '.join(nodes)}."


def page(requests: Sequence[LeaveRequest]) -> Page:
    """What was asked, for people."""
    heads = ("NAMESPACE", "NAME", "PODS THERE", "LEAVE", "ASKED")
    rows = tuple(
        (one.namespace, one.name, ", ".join(one.pods), ", ".join(one.nodes), "before" if one.asked_before else "now")
        for one in requests
    )
    stays = "New members start elsewhere, and none trains there while the annotation names the node. To withdraw that:"
    return (Table(heads, rows), stays, *(one.withdraw for one in requests))


def page_of_withdrawals(withdrawn: Sequence[Withdrawal]) -> Page:
    """What was withdrawn, for people."""
    heads = ("NAMESPACE", "NAME", "MAY STAY ON", "STILL LEAVES")
    rows = tuple((one.namespace, one.name, ", ".join(one.nodes), one.vacate) for one in withdrawn)
    return (Table(heads, rows), "Members that were asked to leave before finish their move.")


def page_of_foretold(foretold: Foretold, rules: Rules, now: datetime) -> Page:
    """What the requests would do, for people."""
    parts = [details(one, now) for one in foretold.moves]
    asked = [
        f"{one.namespace}/{one.name}: asked before, so nothing changes" for one in foretold.requests if one.asked_before
    ]
    return (*parts, *asked, played(rules), "Nothing was written.")
