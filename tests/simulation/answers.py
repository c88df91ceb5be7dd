"""What the API server says over HTTP: a status, headers and a body; and what it, or a proxy before it, makes of that.

Written from Kubernetes' own rules, without the operator's reading of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tests.simulation.objects import FailedPatch, Json, Refused

NO_ANSWER: Final = "no answer"
_PAGE: Final = b"<html>\r\n<head><title>%d</title></head>\r\n<body><center><h1>%d</h1></center></body>\r\n</html>\r\n"
_NO_SUCH_PATH: Final = b"404 page not found\n"


@dataclass
class Answer:
    """One answer, as it arrives."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    cut: bool = False
    """The connection ends within the body."""
    stream: Any = None
    """The events of a watch, in place of a body."""
    damaged: bool = False
    """Nobody can read its body."""

    @property
    def wrong(self) -> str:
        """An HTTP status, `no answer`, or "" if all is well."""
        if self.status >= 300:
            return str(self.status)
        return NO_ANSWER if self.cut or self.damaged else ""

    @property
    def asked(self) -> float:
        """Seconds for which it asks the client to wait."""
        return float(self.headers.get("Retry-After", 0))


def good(text: str, status: int = 200) -> Answer:
    """With that JSON as its body."""
    return Answer(status, {"Content-Type": "application/json"}, text.encode())


compact: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
"""The JSON of a value."""


def page(items: Iterable[str], version: int, token: str, left: int) -> str:
    """The JSON of a page of a LIST."""
    metadata: Json = {"resourceVersion": str(version)}
    if token:
        metadata |= {"continue": token, "remainingItemCount": left}
    return f'{{"kind":"List","apiVersion":"v1","metadata":{compact(metadata)},"items":[{",".join(items)}]}}'


def discovery(kinds: Iterable[str]) -> Answer:
    """The resources of a group."""
    return good(compact({"kind": "APIResourceList", "resources": [{"name": kind} for kind in kinds]}))


def no_such_path() -> Answer:
    """As for a group that is not served."""
    return Answer(404, {"Content-Type": "text/plain; charset=utf-8"}, _NO_SUCH_PATH)


def status_of(refused: Refused, kind: str, name: str) -> Json:
    """The object that stands for the refusal. A failed JSON patch names nothing, every other refusal its object."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"message": str(refused), "reason": refused.reason, "code": refused.status}
    details: Json = {} if isinstance(refused, FailedPatch) or refused.status >= 429 else {"name": name, "kind": kind}
    if refused.status == 422 and details:
        details["causes"] = [{"reason": "FieldValueInvalid", "message": str(refused)}]
    if refused.retry_after:
        details["retryAfterSeconds"] = int(refused.retry_after)
    return status | ({"details": details} if details else {})


def refusal(refused: Refused, kind: str = "", name: str = "") -> Answer:
    """A refusal. Its Retry-After has whole seconds."""
    answer = good(compact(status_of(refused, kind, name)), refused.status)
    if refused.retry_after:
        answer.headers["Retry-After"] = str(int(refused.retry_after))
    return answer


def event(kind: str, text: str) -> bytes:
    """A line of a watch."""
    return f'{{"type":"{kind}","object":{text}}}\n'.encode()


def expired(what: str) -> Refused:
    """The server has forgotten what a client goes on from."""
    return Refused(410, "Expired", f"{what} is too old")


# what becomes of an answer on its way


def _by_proxy(answer: Answer) -> None:
    """A load balancer answers in the server's place."""
    answer.headers["Content-Type"] = "text/html"
    answer.body = _PAGE % (answer.status, answer.status)


def _empty(answer: Answer) -> None:
    answer.body = b""


def _in_words(answer: Answer) -> None:
    """As priority and fairness refuses, before any handler has seen the request."""
    answer.headers["Content-Type"] = "text/plain; charset=utf-8"
    answer.body = b"Too many requests, please try again later.\n"


def _of_another_kind(answer: Answer) -> None:
    answer.body = b'["error"]'


def _halved(answer: Answer) -> None:
    """Whole as far as HTTP knows."""
    answer.body = answer.body[: len(answer.body) // 2]
    answer.damaged = True


def _cut(answer: Answer) -> None:
    """As far as HTTP knows, too."""
    answer.body = answer.body[: len(answer.body) // 2]
    answer.cut = True


FORMS: Final[Mapping[str, Callable[[Answer], None]]] = MappingProxyType(
    {
        "proxy": _by_proxy,
        "empty": _empty,
        "words": _in_words,
        "other": _of_another_kind,
        "halved": _halved,
        "cut": _cut,
    }
)
"""Bodies that are no Status, or not a whole one."""
CUTS: Final = ("halved", "cut")
