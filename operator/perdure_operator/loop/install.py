"""Checks that the CRD is installed and not older than this operator: Helm installs a CRD and never upgrades it.

An older CRD only causes a warning: status takes unknown fields, and new fields of spec have their defaults. The check
compares the fields themselves, because a version number is easily forgotten. Called by `operator` before it watches.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from perdure.errors import UserError
from perdure_operator.cluster.protocol import CRDS, JOBS, ApiError, ClusterApi, Json, NotFound, Unavailable
from perdure_operator.loop.schedule import backoff
from perdure_operator.schema import crd, reference_page

NAME: Final = f"{JOBS.plural}.{JOBS.group}"
APPLY: Final = "kubectl apply --server-side --force-conflicts -f -"
"""--force-conflicts: the fields are Helm's, which never writes them again."""

_NAMED: Final = 5
_PATIENCE_SECONDS: Final = 30.0
"""How long the start waits for the API server: the chart's liveness probe ends a pod that serves no health for 60 s."""

logger = logging.getLogger(__name__)


async def check(
    api: ClusterApi,
    namespace: str | None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Raise UserError if jobs cannot be listed; log a warning if the CRD is older."""
    deadline, failures = monotonic() + _PATIENCE_SECONDS, 0
    while not await _require(api, namespace, retry=monotonic() < deadline):
        failures += 1
        await sleep(backoff(failures, first=1.0, longest=_PATIENCE_SECONDS / 3))
    try:
        installed = await api.get(CRDS, None, NAME)
    except ApiError as error:
        logger.warning("cannot tell whether the CustomResourceDefinition is older than this operator: %s", error)
        return
    lacking = missing(installed)
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        logger.warning(
            "CustomResourceDefinition %s is older than this operator and drops %s%s: Helm does not upgrade it: "
            "perdure-operator crd | %s",
            NAME,
            ", ".join(lacking[:_NAMED]),
            more,
            APPLY,
        )


def missing(installed: Json) -> list[str]:
    """Fields of spec that this operator knows and the installed CRD does not; a newer CRD lacks none."""
    known = _fields(_served(installed))
    return [path for path in _fields(crd.root_schema()) if path not in known]


def _served(installed: Json) -> Json:
    versions: list[Any] = (installed.get("spec") or {}).get("versions") or []
    ours = [one for one in versions if isinstance(one, dict) and one.get("name") == crd.VERSION]
    return ((ours[0].get("schema") or {}).get("openAPIV3Schema") or {}) if ours else {}


def _fields(schema: Json) -> list[str]:
    return [
        path for path, _, _ in reference_page.fields(schema) if path.startswith("spec.") and not path.endswith("[]")
    ]


async def _require(api: ClusterApi, namespace: str | None, *, retry: bool) -> bool:
    """Whether jobs can be listed; False only with `retry`, if the API server is away.

    kopf only watches resources that it discovers at the start: without the CRD it would wait without a message.
    """
    try:
        await api.list(JOBS, namespace)
    except NotFound:
        raise UserError(
            f"CustomResourceDefinition {NAME} is not installed: kubectl apply -f crds/, or helm install"
        ) from None
    except ApiError as error:
        if retry and isinstance(error, Unavailable):
            logger.warning("the API server is not there yet, so the start waits for it: %s", error)
            return False
        raise UserError(f"cannot list {JOBS.plural}: {error}") from None
    return True
