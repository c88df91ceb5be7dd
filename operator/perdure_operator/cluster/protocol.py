"""The calls that the operator makes to a cluster, and their errors.

`kube.KubeApi` is the real implementation; tests use one in memory that passes the same contract tests. `ReadOnlyApi`,
the half that only reads, is `kubectl.client.Kubectl` as well. Objects are raw JSON: only `read.parse`, `member` and
`write.manifests` know their fields. Called by `observe`, `act` and `election`.

    ApiError              the request failed; `status` is the HTTP status, 0 without an answer
    ├── NotFound          no such object
    ├── AlreadyExists     the name is taken
    ├── Conflict          a precondition (uid, resourceVersion, an old value) no longer holds: observe again
    ├── Invalid           the object itself is wrong: the server will always refuse it
    ├── Forbidden         RBAC, admission or a quota; the message says which
    └── Unavailable       no answer (or only a proxy's), a timeout, overload or a server error: try again later
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
OnChange = Callable[[Json | None], object]
"""Receives a state of an object, None for a deleted one; raises nothing."""


@dataclass(frozen=True)
class Resource:
    """A kind of object, by the parts of its URL."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The value of an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of its group's discovery document."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str = "") -> str:
        """The path of one object, or of all; `namespace` None means all namespaces."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{scope}/{self.plural}" + (f"/{name}" if name else "")


JOBS: Final = Resource(GROUP, "v1alpha1", "trainingjobs")
PODS: Final = Resource("", "v1", "pods")
NODES: Final = Resource("", "v1", "nodes", namespaced=False)
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
REVISIONS: Final = Resource("apps", "v1", "controllerrevisions")
NODE_CLAIMS: Final = Resource("karpenter.sh", "v1", "nodeclaims", namespaced=False)
EVENTS: Final = Resource("events.k8s.io", "v1", "events")
CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
SECRETS: Final = Resource("", "v1", "secrets")
"""Only the one with the operator's own certificates: see `loop.keys`."""
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")
EVICTIONS: Final = Resource("lifecycle.k8s.io", "v1alpha1", "evictions")
"""Only in Kubernetes 1.37 and later, and only if enabled: see `serves`."""


class ApiError(Exception):
    """The API server refused, or did not answer."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        """Seconds that the server asks to wait before the next request (Retry-After), 300 at most."""
        self.explained = False
        """Whether the answer names an object, a field or the plugin that refuses."""


class NotFound(ApiError):
    """No such object."""


class AlreadyExists(ApiError):
    """The name is taken."""


class Conflict(ApiError):
    """A precondition no longer holds."""


class Invalid(ApiError):
    """The server will always refuse this object."""


class Forbidden(ApiError):
    """RBAC, admission or a quota."""


class Unavailable(ApiError):
    """No answer, or a server error."""


class ReadOnlyApi(Protocol):
    """A cluster that is only read. Every call raises only ApiError."""

    def server_time(self) -> datetime:
        """The API server's time, estimated from its answers; it never runs backwards."""

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server has that kind."""

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        """All objects as of now, never from a cache; `namespace` None means all namespaces."""

    def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        """All objects page by page, to save memory and not to block the event loop."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        """The object as of now."""


class ClusterApi(ReadOnlyApi, Protocol):
    """A cluster. Every call is bounded by a timeout and raises only ApiError."""

    async def follow(
        self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float, on_change: OnChange
    ) -> None:
        """Pass each state of the object after that resourceVersion to `on_change`, None for a deletion, for `seconds`.

        It may end earlier. A dead connection looks like an unchanged object.
        """

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        """Create the object; with `dry_run` only validate and admit it."""

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        """Apply a JSON patch; a failed `test` operation raises Conflict."""

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]
    ) -> Json:
        """Patch the status only; `test` may read any field."""

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Replace the object; metadata.resourceVersion in `body` is a precondition."""

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        """Replace the status only; metadata.resourceVersion and metadata.uid in `body` are preconditions."""

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        """Delete exactly that object. Raises NotFound if it is gone, and Conflict if another has its name.

        With `version`, a changed object raises Conflict too. A pod gets `grace` seconds to end; with None its own
        grace period.
        """
