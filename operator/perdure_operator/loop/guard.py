"""Keeps malformed objects, watch errors and refused requests from ending kopf or one of its watches.

kopf 1.45.2 parses watch lines with `json.loads` and LISTs with aiohttp's parser, assumes that metadata is a map with a
uid, and ends the operator at the first exception there and at any ERROR but 410. A watch whose request is refused (9
times for a 403 or a 5xx, once for anything else) ends for good, a refused discovery ends the operator, and a 401 closes
the connections of all others. A Retry-After that is no number is an exception; one of a day is a sleep of a day. It
has no hook for this, so `install` replaces five names of its client modules: the parser of a line, the GET that lists,
the LIST with the watch after it, the discovery, and what makes exceptions of refusals.

Each event goes to the cache as soon as it is parsed, and kopf gets a bookmark instead: kopf's own handling of an event
costs several times as much, for handlers that we do not have. Objects of a LIST still go through kopf, and so do
deletions, because kopf has to forget the object. Called by `operator`, once, before kopf starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import kopf
from kopf._cogs.clients import api, auth, errors, scanning, watching
from kopf._cogs.structs.credentials import Vault

from perdure.errors import UserError
from perdure_operator.cluster import decode
from perdure_operator.cluster.protocol import BUDGETS, CRDS, EVICTIONS, JOBS, NODES, PODS, Json, Resource
from perdure_operator.loop.schedule import LONGEST_SECONDS, backoff

_START_AGAIN: Final[Json] = {"type": "ERROR", "object": {"code": 410}}
"""Makes kopf list again and watch from there."""

_KINDS: Final = {
    (JOBS.api_version, "TrainingJob"): JOBS,
    (PODS.api_version, "Pod"): PODS,
    (NODES.api_version, "Node"): NODES,
    (BUDGETS.api_version, "PodDisruptionBudget"): BUDGETS,
    (EVICTIONS.api_version, "Eviction"): EVICTIONS,
}

_FIRST_SECONDS: Final = 1.0
"""Between the first failure of a watch and its new LIST."""
_LIST_AND_WATCH: Final[Any] = getattr(watching, "continuous_watch", None)
"""kopf's own: one LIST, and the watch after it."""
_CHECK: Final[Any] = getattr(errors, "check_response", None)
"""kopf's own: raises what a refusal stands for."""
_NEEDED: Final = ((api, "json"), (api, "get"), (auth, "vault_var"), (scanning, "api"))
"""What this module replaces or reads besides."""
_RETRY_AFTER: Final = "Retry-After"

_NEEDED_DOCUMENTS: Final = {"/version", "/api", "/apis", *(one.root for one in (JOBS, PODS, NODES, BUDGETS, CRDS))}
"""Without one of these kopf ends the operator, waits for ever or does not watch a kind."""
_ABSENCES: Final = 5
"""How often any other one has to be absent before it counts as gone: one server of several may know it later."""

Taker = Callable[[Resource, str, Json], None]
"""Handles one event; raises nothing."""
OnListed = Callable[[Resource], None]
"""Learns that all objects of a kind were listed, before the first event after it; raises nothing."""

logger = logging.getLogger(__name__)


def install(take_in: Taker, listed: OnListed, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Replace kopf's two JSON readers and its watch; raises UserError for a kopf without them."""
    known = _LIST_AND_WATCH, _CHECK, *(hasattr(one, name) for one, name in _NEEDED)
    if not all((*known, hasattr(getattr(watching, "Bookmark", None), "LISTED"), hasattr(Vault(), "_invalid"))):
        raise UserError(f"kopf {kopf.__version__} is not the one this operator was written for: install kopf 1.45.2")
    api.json = SimpleNamespace(loads=partial(event, take_in=take_in))
    api.get = _get
    errors.check_response = _check_response
    scanning.api = SimpleNamespace(get=partial(_discover, sleep=sleep))
    watching.continuous_watch = partial(_list_and_watch, on_listed=listed, failures=defaultdict(int), sleep=sleep)


def event(line: str, take_in: Taker | None = None) -> Json:
    """A watch event that kopf can handle; a bookmark if kopf could not handle it or `take_in` already did."""
    try:
        raw = decode.document(line)
    except ValueError as error:
        logger.warning("the watch sent a line that is not JSON, so all objects are listed again: %s", error)
        return _START_AGAIN
    if not isinstance(raw, dict) or not isinstance(raw.get("object"), dict):
        logger.warning("the watch sent a line that is not an event, so all objects are listed again: %.200s", line)
        return _START_AGAIN
    match raw.get("type"):
        case "ERROR":
            return _error(raw["object"])
        case "ADDED" | "MODIFIED" | "DELETED" if decode.known_part(raw["object"], "watch") is not None:
            return raw if not _taken_in(raw, take_in) else {"type": "BOOKMARK", "object": _bookmark(raw["object"])}
        case _:
            return {"type": "BOOKMARK", "object": _bookmark(raw["object"])}


def _taken_in(raw: Json, take_in: Taker | None) -> bool:
    """Whether kopf need not see the event. Deletions are handled here too, to keep the order, but kopf also sees
    them."""
    resource = _KINDS.get((str(raw["object"].get("apiVersion")), str(raw["object"].get("kind"))))
    if take_in is None or resource is None:
        return False
    take_in(resource, raw["type"], raw["object"])
    return bool(raw["type"] != "DELETED")


def _error(status: Json) -> Json:
    """Any error ends the watch; a new LIST can still succeed."""
    if status.get("code") != _START_AGAIN["object"]["code"]:
        words = "the API server ended a watch, so all objects are listed again: %s"
        logger.warning(words, status.get("message") or status)
    return _START_AGAIN


def _bookmark(raw: Json) -> Json:
    metadata = raw.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return {"metadata": {"resourceVersion": version} if isinstance(version, str) else {}}


async def _get(url: str, **options: Any) -> Any:
    """Replaces kopf's `get`, which reads discovery documents and LISTs."""
    response = await api.request(method="get", url=url, **options)
    async with response:
        text = await response.read()
    try:
        page = decode.document(text)
    except ValueError as error:
        raise aiohttp.ClientPayloadError(f"{url}: not JSON: {error}") from None  # kopf lists again
    if isinstance(page, dict) and "items" in page:
        page["items"] = decode.known_items(page, str(page.get("kind", "")).removesuffix("List"))
    return page


async def _check_response(response: aiohttp.ClientResponse) -> None:
    """Replaces kopf's `check_response`: kopf sleeps for as long as an error says, whatever it says."""
    try:
        await _CHECK(response)
    except errors.APIError as error:
        text = response.headers.get(_RETRY_AFTER, "")
        asked = min(float(text), LONGEST_SECONDS) if text.isascii() and text.isdigit() else 0.0
        error._headers = {_RETRY_AFTER: f"{asked:g}"}  # noqa: SLF001 - kopf has no other way
        raise


async def _discover(url: str, *, sleep: Callable[[float], Awaitable[None]], **options: Any) -> Any:
    """Replaces kopf's `get` of discovery documents, once at its start: of each version of the groups that are watched.

    One may be gone for good by then, as during an upgrade of the API servers: kopf goes on without it.
    """
    failures = absences = 0
    while True:
        try:
            return await _get(url, **options)
        except Exception as error:
            failures += 1
            absences += isinstance(error, errors.APINotFoundError)
            if absences >= _ABSENCES and url not in _NEEDED_DOCUMENTS:
                raise
            wait = backoff(failures, first=_FIRST_SECONDS, at_least=_retry_after(error))
            words = "the API server does not say what it serves, so it is asked again in %g s: %s: %r"
            logger.warning(words, wait, url, error)
            await _recover(error, wait, sleep)


async def _list_and_watch(
    *,
    resource: Any,
    namespace: str | None,
    on_listed: OnListed,
    failures: defaultdict[tuple[Any, str | None], int],
    sleep: Callable[[float], Awaitable[None]],
    **options: Any,
) -> AsyncIterator[Any]:
    """Replaces kopf's `continuous_watch`, which kopf calls again when it ends, and gives up when it raises.

    `failures` counts those in a row: a LIST alone is no success, because the watch after it may fail each time.
    """
    watch, listed = (resource, namespace), False
    try:
        async with aclosing(_LIST_AND_WATCH(resource=resource, namespace=namespace, **options)) as events:
            async for each in events:
                if listed:
                    failures.pop(watch, None)
                if each is watching.Bookmark.LISTED:
                    listed = True
                    _report(resource, on_listed)
                yield each
    except Exception as error:  # noqa: BLE001 - whatever it is, a new LIST may succeed
        failures[watch] += 1
        wait = backoff(failures[watch], first=_FIRST_SECONDS, at_least=_retry_after(error))
        words = "the watch of %s has failed, so all of them are listed again in %g s: %r"
        logger.warning(words, resource.plural, wait, error)
        await _recover(error, wait, sleep)


def _report(resource: Any, on_listed: OnListed) -> None:
    """Report that all objects of kopf's resource were listed."""
    for known in _KINDS.values():
        if (known.group, known.plural) == (resource.group, resource.plural):
            on_listed(known)


def _retry_after(error: Exception) -> float | None:
    return float(error.headers[_RETRY_AFTER]) if isinstance(error, errors.APIError) else None


async def _recover(error: Exception, wait: float, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Wait, and make kopf read the credentials again if it has none left.

    It never takes those that were refused before, even if they are valid.
    """
    await sleep(wait)
    if not isinstance(error, kopf.LoginError):
        return
    vault = auth.vault_var.get()
    vault._invalid.clear()  # noqa: SLF001 - kopf has no other way
    await vault.invalidate("", None)  # does nothing if another watch has logged in meanwhile
