"""Checks whether the API server serves Evictions as objects, so that the operator can answer them.

Kubernetes 1.37 serves `lifecycle.k8s.io/v1alpha1` behind the feature gate EvictionRequestAPI, off by default. kopf
watches a fixed set of resources, so the operator restarts when the answer changes. Called by `operator` and `leader`.
"""

from __future__ import annotations

import logging

from perdure_operator.cluster.protocol import EVICTIONS, ApiError, ClusterApi, Forbidden

NAME = f"{EVICTIONS.plural}.{EVICTIONS.api_version}"

logger = logging.getLogger(__name__)


class Outdated(Exception):
    """The API server began or ceased to serve Evictions after the start."""


async def found(api: ClusterApi, namespace: str | None) -> bool:
    """Whether Evictions are served and readable. Logs the result."""
    try:
        if not await api.serves(EVICTIONS):
            logger.info("the API server does not serve %s: the operator answers none", NAME)
            return False
        await api.list(EVICTIONS, namespace)
    except Forbidden:
        logger.warning(
            "%s are served, but the operator may not read them and answers none: install the chart's roles of this "
            "version, or set its value evictionRequests to false",
            NAME,
        )
        return False
    except ApiError as error:
        logger.warning("cannot tell whether %s are served, so the operator answers none: %s", NAME, error)
        return False
    logger.info("the API server serves %s: new members name the operator in spec.evictionResponders", NAME)
    return True


async def require_unchanged(api: ClusterApi, namespace: str | None, *, known: bool) -> None:
    """Raise Outdated if the answer of the start no longer holds."""
    try:
        now = await api.serves(EVICTIONS)
        if now and not known:
            await api.list(EVICTIONS, namespace)
    except ApiError:  # no answer, or still no right to read: not a known change
        return
    if now != known:
        raise Outdated(f"{NAME} are {'served now' if now else 'not served any more'}")
