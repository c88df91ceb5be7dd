"""Asks a cluster through kubectl itself, so that both always mean the same cluster, user, proxy and credentials.

Each reading is a process `kubectl get --raw PATH`, and the only write a `kubectl patch`: kubectl reads the kubeconfig
and asks for credentials. Its input is the user's, so a credential plugin may ask something. What it says is passed on
while it says it; only a refusal of the API server is held back, as not each of them is an error.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlencode

from perdure.errors import UserError
from perdure_operator.cluster import decode
from perdure_operator.cluster.clock import utc_now
from perdure_operator.cluster.protocol import ApiError, Conflict, Forbidden, Json, NotFound, Resource

PAGE: Final = 500
"""Objects in a page, as in kubectl's own lists: each page is a process."""
FIELD_MANAGER: Final = "kubectl-perdure"
"""Who has written an annotation, in the object's managedFields."""
REFUSAL: Final = "Error from server"
"""How kubectl begins what the API server said."""
POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""The namespace of a pod's own account, which kubectl uses where no kubeconfig says more."""
_REASON: Final = re.compile(rf"{REFUSAL} \((\w+)\): ")
_KINDS: Final[dict[str, tuple[type[ApiError], int]]] = {
    "NotFound": (NotFound, 404),
    "Forbidden": (Forbidden, 403),
    "Conflict": (Conflict, 409),
}
_CHUNK: Final = 1 << 16


class KubectlFailed(Exception):
    """kubectl has ended with this exit status, and has said why itself."""

    def __init__(self, status: int) -> None:
        super().__init__(f"kubectl has ended with exit status {status}")
        self.status = status


class Kubectl:
    """A ReadOnlyApi, and one write.

    Every call may raise UserError without a kubectl, and KubectlFailed, besides ApiError.
    """

    def __init__(self, flags: Sequence[str] = ()) -> None:
        """`flags` are kubectl's own, such as `--context=prod`; they choose the cluster and the user."""
        self._flags = tuple(flags)

    def server_time(self) -> datetime:
        """This machine's own time: `kubectl get --raw` does not show the server's."""
        return utc_now()

    async def namespace(self) -> str:
        """The namespace that kubectl uses without `-n`: the context's, or in a pod its own, or `default`."""
        view = ("config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}")
        # Without a context there is nothing to show. A wrong kubeconfig fails again, with a message, next time.
        _, output, _ = await self._run(*view, said=None)
        if output:
            return output.decode()
        try:
            return POD_NAMESPACE.read_text().strip()
        except OSError:
            return "default"

    async def serves(self, resource: Resource) -> bool:
        """See ReadOnlyApi. Reads a discovery document, which every authenticated client may read."""
        try:
            known = (await self._read(resource.root)).get("resources")
        except NotFound:
            return False
        return any(isinstance(one, dict) and one.get("name") == resource.plural for one in known or ())

    async def list(
        self, resource: Resource, namespace: str | None = None, *, selector: str = "", fields: str = ""
    ) -> list[Json]:
        """See ReadOnlyApi. `fields` is a field selector."""
        found = self.pages(resource, namespace, selector=selector, fields=fields)
        return [raw async for page in found for raw in page]

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = "", fields: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        """See ReadOnlyApi. `fields` is a field selector."""
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            page = await self._read(f"{resource.path(namespace)}?{urlencode(query)}")
            yield decode.known_items(page, resource.plural)
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            query |= {"continue": token}

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """See ReadOnlyApi."""
        path = resource.path(namespace, name)
        known = decode.known_part(await self._read(path))
        if known is None:
            raise ApiError(f"error: {path}: the answer is not an object")
        return known

    async def lines(self, path: str) -> AsyncGenerator[str, None]:
        """The lines of an answer that is text, each when it comes. Close it, or its kubectl goes on."""
        process = await self._started("get", "--raw", path)
        said = asyncio.create_task(_passed_on(process, sys.stderr))
        try:
            async for line in _lines_of(process):
                yield line
            refusal, status = await said, await process.wait()
        finally:
            said.cancel()
            await _ended(process)
        if status and refusal:
            raise _refused(refusal)
        if status:
            raise KubectlFailed(_as_a_shell_says(status))

    async def annotate(
        self, resource: Resource, namespace: str, name: str, annotations: Mapping[str, str | None], *, version: str = ""
    ) -> None:
        """Give the object these annotations; None removes one.

        Raises Conflict if the object is not the one of this resourceVersion any more.
        """
        only = {"resourceVersion": version} if version else {}
        patch = {"metadata": {**only, "annotations": dict(annotations)}}
        words = [f"{resource.plural}.{resource.group}", name, f"--namespace={namespace}", "--type=merge"]
        words += [f"--patch={json.dumps(patch)}", f"--field-manager={FIELD_MANAGER}"]
        status, _, refusal = await self._run("patch", *words, said=sys.stderr)
        if refusal:
            raise _refused(refusal)
        if status:
            raise KubectlFailed(status)

    async def _read(self, path: str) -> Json:
        status, body, refusal = await self._run("get", "--raw", path, said=sys.stderr)
        if refusal:
            raise _refused(refusal)
        if status:
            raise KubectlFailed(status)
        try:
            document = decode.document(body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ApiError(f"error: {path}: the answer is not JSON: is this an API server?")
        return document

    async def _run(self, *words: str, said: IO[str] | None) -> tuple[int, bytes, str]:
        """The exit status, the output, and a refusal of the API server. The rest of stderr goes to `said`."""
        process = await self._started(*words)
        try:
            body, refusal = await asyncio.gather(_output(process), _passed_on(process, said))
            status = await process.wait()
        finally:
            await _ended(process)
        return _as_a_shell_says(status), body, refusal if status else ""

    async def _started(self, *words: str) -> Process:
        program = shutil.which("kubectl")
        if program is None:
            raise UserError("kubectl is not on the PATH: kubectl perdure reads the cluster through it")
        return await asyncio.create_subprocess_exec(program, *words, *self._flags, stdout=PIPE, stderr=PIPE)


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _as_a_shell_says(status: int) -> int:
    return status if status >= 0 else 128 - status


async def _lines_of(process: Process) -> AsyncIterator[str]:
    """What a process prints, line by line, however long they are."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    begun = bytearray()
    while chunk := await process.stdout.read(_CHUNK):
        first, *more = chunk.split(b"\n")
        begun += first
        for part in more:
            yield begun.decode(errors="replace")
            begun = bytearray(part)
    if begun:
        yield begun.decode(errors="replace")


async def _output(process: Process) -> bytes:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    return await process.stdout.read()


async def _passed_on(process: Process, said: IO[str] | None) -> str:
    """Write what a process says to `said`, each part at once, up to a refusal of the API server; returns that one."""
    assert process.stderr is not None  # noqa: S101 - it is a pipe
    decoder, held = codecs.getincrementaldecoder("utf-8")("replace"), RefusalFilter()
    while chunk := await process.stderr.read(_CHUNK):
        _write(held.rest(decoder.decode(chunk)), said)
    _write(held.end(), said)
    return held.refusal


def _write(text: str, said: IO[str] | None) -> None:
    if said is not None and text:
        said.write(text)
        said.flush()


class RefusalFilter:
    """Divides what kubectl says into a refusal, which is held back, and the rest. Pure."""

    def __init__(self) -> None:
        self.refusal = ""
        """All from the line on that begins with REFUSAL."""
        self._line = ""
        """The beginning of a line that may become a refusal."""
        self._inside = False
        """Whether a line that is no refusal has begun."""

    def rest(self, text: str) -> str:
        """Take more text; returns what may be shown."""
        shown = ""
        for part in text.splitlines(keepends=True):
            shown += self._part(part)
        return shown

    def end(self) -> str:
        """No more text comes; returns what may be shown."""
        rest, self._line = self._line, ""
        return rest

    def _part(self, part: str) -> str:
        if self.refusal:
            self.refusal += part
            return ""
        if not self._inside:
            line, self._line = self._line + part, ""
            if line.startswith(REFUSAL):
                self.refusal = line
                return ""
            if REFUSAL.startswith(line):
                self._line = line
                return ""
            part = line
        self._inside = not part.endswith(("\n", "\r"))
        return part


def _refused(refusal: str) -> ApiError:
    found = _REASON.match(refusal)
    reason = found.group(1) if found else ""
    kind, status = _KINDS.get(reason, (ApiError, 0))
    return kind(refusal.rstrip("\n"), status=status, reason=reason)
