"""Turns frozen values into the text that Prometheus reads. Runs in a thread, and touches nothing of the loop's."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from perdure_operator.serving.metrics import jobs, operator
from perdure_operator.serving.metrics.counted import Frozen
from perdure_operator.serving.metrics.server import Body, Collect

_GZIP = 16 + zlib.MAX_WBITS


class _Once(Collector):
    """The families of one scrape."""

    def __init__(self, frozen: Frozen) -> None:
        self._frozen = frozen

    def collect(self) -> Iterator[Metric]:
        """The operator's families first, then the jobs'."""
        yield from operator.families(self._frozen.facts, version=version("perdure"))
        if self._frozen.jobs is not None:
            yield from jobs.families(self._frozen.jobs)


def text(frozen: Frozen) -> bytes:
    """The exposition of these values."""
    registry = CollectorRegistry()
    registry.register(_Once(frozen))
    return generate_latest(registry)


def body(frozen: Frozen, gzip: bool) -> Body:
    """The answer to one scrape."""
    plain = text(frozen)
    if not gzip:
        return Body(plain, CONTENT_TYPE_PLAIN_0_0_4)
    packer = zlib.compressobj(level=1, wbits=_GZIP)
    return Body(packer.compress(plain) + packer.flush(), CONTENT_TYPE_PLAIN_0_0_4, gzipped=True)


def collector(freeze: Callable[[], Frozen]) -> Collect:
    """Collects scrapes: `freeze` is called in the loop, the rest happens in a thread."""

    async def collect(gzip: bool) -> Body:
        return await asyncio.to_thread(body, freeze(), gzip)

    return collect
