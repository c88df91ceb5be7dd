"""Finds what is wrong with an installation: the API server serves no CRD or an older one, or no operator leads.

A leader is known by its Lease, which changes while this looks at it: no other machine's clock matters. For the chart's
test (`helm test`), by `perdure-operator verify`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from perdure_operator.cluster.election import LeaseSettings
from perdure_operator.cluster.protocol import CRDS, JOBS, LEASES, ClusterApi, Json, NotFound
from perdure_operator.loop.install import NAME, NOT_INSTALLED, missing, older

_DURATIONS: Final = 3
"""Durations of the Lease to look at it: in one of them a leader may die, and in the next another one follows."""


async def problems(
    api: ClusterApi,
    lease: LeaseSettings,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[str]:
    """What is wrong, each with its remedy; none if all is well. Raises ApiError if the API server does not tell."""
    found = [await _of_crd(api), await _of_leader(api, lease, monotonic, sleep)]
    return [problem for problem in found if problem]


async def _of_crd(api: ClusterApi) -> str:
    if not await api.serves(JOBS):
        return NOT_INSTALLED
    lacking = missing(await api.get(CRDS, None, NAME))
    return older(lacking) if lacking else ""


async def _of_leader(
    api: ClusterApi,
    settings: LeaseSettings,
    monotonic: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> str:
    where, until = f"the Lease {settings.namespace}/{settings.name}", monotonic() + _DURATIONS * settings.seconds
    first = newest = await _lease(api, settings)
    while monotonic() < until:
        await sleep(settings.period)
        newest = await _lease(api, settings)
        if _holder(newest) and newest.get("spec") != first.get("spec"):
            return ""
    state = f"is held by {_holder(newest)} and was not renewed" if _holder(newest) else "had no holder"
    state = state if newest else "did not exist"
    return f"no operator leads: {where} {state} for {_DURATIONS * settings.seconds:.0f} s: look at the operator's log"


async def _lease(api: ClusterApi, settings: LeaseSettings) -> Json:
    try:
        return await api.get(LEASES, settings.namespace, settings.name)
    except NotFound:
        return {}


def _holder(lease: Json) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
