"""Checks that the CRD is installed and not older than this operator: Helm installs a CRD and never upgrades it.

An older CRD only causes a warning: status takes unknown fields, and new fields of spec have their defaults. The check
compares the fields themselves, because a version number is easily forgotten. Called by `operator` before it watches.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

from perdure.errors import UserError
from perdure_operator.cluster.protocol import CRDS, JOBS, ApiError, ClusterApi, Json, NotFound, Unavailable
from perdure_operator.loop.schedule import backoff
from perdure_operator.schema import crd, reference_page

NAME: Final = f"{JOBS.plural}.{JOBS.group}"
APPLY: Final = "kubectl apply --server-side --force-conflicts -f -"
"""--force-conflicts: the fields are Helm's, which never writes them again."""
NOT_INSTALLED: Final = f"CustomResourceDefinition {NAME} is not installed: kubectl apply -f crds/, or helm install"

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
    while refusal := await _refusal(api, namespace, retry=monotonic() < deadline):
        failures += 1
        await sleep(backoff(failures, first=1.0, longest=_PATIENCE_SECONDS / 3, at_least=refusal.retry_after))
    try:
        installed = await api.get(CRDS, None, NAME)
    except ApiError as error:
        logger.warning("cannot tell whether the CustomResourceDefinition is older than this operator: %s", error)
        return
    lacking = missing(installed)
    if lacking:
        logger.warning(older(lacking))


def missing(installed: Json) -> list[str]:
    """Fields of spec that this operator knows and the installed CRD does not; a newer CRD lacks none."""
    known = _fields(_served(installed))
    return [path for path in _fields(crd.root_schema()) if path not in known]


def older(lacking: list[str]) -> str:
    """What to do about a CRD that lacks these fields."""
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return (
        f"CustomResourceDefinition {NAME} is older than this operator and drops {', '.join(lacking[:_NAMED])}{more}: "
        f"Helm does not upgrade it: perdure-operator crd | {APPLY}"
    )


def _served(installed: Json) -> Json:
    versions: list[Any] = (installed.get("spec") or {}).get("versions") or []
    ours = [one for one in versions if isinstance(one, dict) and one.get("name") == crd.VERSION]
    return ((ours[0].get("schema") or {}).get("openAPIV3Schema") or {}) if ours else {}


def _fields(schema: Json) -> list[str]:
    return [
        path for path, _, _ in reference_page.fields(schema) if path.startswith("spec.") and not path.endswith("[]")
    ]


async def _refusal(api: ClusterApi, namespace: str | None, *, retry: bool) -> ApiError | None:
    """Why jobs cannot be listed; only with `retry`, and only what may pass: an API server that starts may also know no
    token yet.

    kopf only watches resources that it discovers at the start: without the CRD it would wait without a message.
    """
    try:
        await api.list(JOBS, namespace)
    except NotFound:
        raise UserError(NOT_INSTALLED) from None
    except ApiError as error:
        if retry and (isinstance(error, Unavailable) or error.status == HTTPStatus.UNAUTHORIZED):
            logger.warning("the API server is not there yet, so the start waits for it: %s", error)
            return error
        raise UserError(f"cannot list {JOBS.plural}: {error}") from None
    return None
