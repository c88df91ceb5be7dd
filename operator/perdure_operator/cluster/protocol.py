"""What the operator asks of a cluster, and the few ways in which a cluster refuses.

`kube.KubeApi` is the real one; tests use an in-memory one that passes the same contract tests. Objects are raw JSON:
`read.parse`, `member` and `write.manifests` are the only modules that know their fields. Called by `observe`, `act` and
`election`.

    ApiError              the request did not succeed; `status` is the HTTP status, 0 where no answer came
    ├── NotFound          no such object
    ├── AlreadyExists     the name is taken
    ├── Conflict          a precondition (uid, resourceVersion, an old value) no longer holds: observe again
    ├── Invalid           the object is refused for what it says: the same object will always be refused
    ├── Forbidden         RBAC, admission or a quota; the message tells which
    └── Unavailable       no answer, a timeout, overload, or the server's own trouble: try again later
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from perdure.wire import GROUP

Json = dict[str, Any]
Operation = Mapping[str, Any]
"""One operation of a JSON patch (RFC 6902)."""
Told = Callable[[Json | None], object]
"""Takes in a state of an object; raises nothing."""


@dataclass(frozen=True)
class Resource:
    """A kind of object, by the words of its URL."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version


JOBS: Final = Resource(GROUP, "v1alpha1", "trainingjobs")
PODS: Final = Resource("", "v1", "pods")
NODES: Final = Resource("", "v1", "nodes", namespaced=False)
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
REVISIONS: Final = Resource("apps", "v1", "controllerrevisions")
NODE_CLAIMS: Final = Resource("karpenter.sh", "v1", "nodeclaims", namespaced=False)
EVENTS: Final = Resource("events.k8s.io", "v1", "events")
CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")
EVICTIONS: Final = Resource("lifecycle.k8s.io", "v1alpha1", "evictions")
"""Kubernetes 1.37 and later, where it is switched on: see `serves`."""


class ApiError(Exception):
    """The API server refused, or did not answer."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        """Seconds before which the server does not want to be asked again (Retry-After)."""
        self.explained = False
        """Whether the answer names an object, a field or whoever refuses."""


class NotFound(ApiError):
    """No such object."""


class AlreadyExists(ApiError):
    """The name is taken."""


class Conflict(ApiError):
    """A precondition no longer holds."""


class Invalid(ApiError):
    """The object will always be refused as it is."""


class Forbidden(ApiError):
    """RBAC, admission or a quota."""


class Unavailable(ApiError):
    """No answer, or the server's own trouble."""


class ClusterApi(Protocol):
    """A cluster. Every call is bounded by a timeout and raises only ApiError."""

    def server_time(self) -> datetime:
        """The API server's clock, as far as its answers tell: it never runs backwards."""

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server has that kind at all."""

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        """All objects, as of now (never from a cache that may be behind); `namespace` None means everywhere."""

    def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        """The same piece by piece, so that neither memory nor the event loop has to hold a cluster at once."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """The object as of now."""

    async def follow(
        self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float, told: Told
    ) -> None:
        """Tell each state of the object after that resourceVersion, None where it is deleted, for so many seconds.

        It may end earlier, and a connection that is dead tells nothing: what was told last may be long past.
        """

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        """Create it; `dry_run` goes through validation and admission and stores nothing."""

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        """Apply a JSON patch; a `test` operation that fails is a Conflict."""

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]
    ) -> Json:
        """The same for the status alone; `test` may look at anything."""

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Replace the object; metadata.resourceVersion in `body` is a precondition."""

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Replace the status alone; metadata.resourceVersion and metadata.uid in `body` are preconditions."""

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        """Delete that very object; one already gone is NotFound, another with its name is a Conflict.

        With `version` an object that has changed since is a Conflict, too. A pod gets `grace` seconds to end, None:
        what it says itself.
        """
