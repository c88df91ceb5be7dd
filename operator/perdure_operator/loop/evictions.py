"""Whether this API server has Evictions as objects that can be answered: found by asking, and off where it has none.

Kubernetes 1.37 serves `lifecycle.k8s.io/v1alpha1` behind its feature gate EvictionRequestAPI, switched off by default.
kopf watches what it was told at the start, so a process that has found them begins anew where they are gone, and one
that has not where they have come. Called by `operator` and `leader`.
"""

from __future__ import annotations

import logging

from perdure_operator.cluster.protocol import EVICTIONS, ApiError, ClusterApi, Forbidden

NAME = f"{EVICTIONS.plural}.{EVICTIONS.api_version}"

logger = logging.getLogger(__name__)


class Outdated(Exception):
    """The API server has begun or ceased to serve what was looked for at the start."""


async def found(api: ClusterApi, namespace: str | None) -> bool:
    """Whether they are served and may be read; says once what follows from it."""
    try:
        if not await api.serves(EVICTIONS):
            logger.info("the API server has no %s: nobody asks the operator by them to let a member go", NAME)
            return False
        await api.list(EVICTIONS, namespace)
    except Forbidden:
        logger.warning(
            "%s are served, and may not be read: they are not answered: install the chart's roles of this version, "
            "or set its value evictionRequests to false",
            NAME,
        )
        return False
    except ApiError as error:
        logger.warning("cannot tell whether %s are served, so they are not answered: %s", NAME, error)
        return False
    logger.info("the API server has %s: new members name the operator in spec.evictionResponders", NAME)
    return True


async def require_unchanged(api: ClusterApi, namespace: str | None, *, known: bool) -> None:
    """Raise Outdated where another answer than at the start would be found now."""
    try:
        now = await api.serves(EVICTIONS)
        if now and not known:
            await api.list(EVICTIONS, namespace)
    except ApiError:  # no answer, or still no right: nothing is known to have changed
        return
    if now != known:
        raise Outdated(f"{NAME} are {'served now' if now else 'not served any more'}")
