"""Where a cluster's files lie, and what other clusters have recorded there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster.names import Names

# Not below /run, /var/lib or /var/log: a node sees an empty one of its own in each of these places.
STATE_ROOT = Path("/var/cache/perdure")


@dataclass(frozen=True)
class Folder:
    """One cluster's files; `root` need not exist."""

    root: Path

    @classmethod
    def of(cls, cluster: str) -> Folder:
        """The folder that belongs to this name."""
        return cls(STATE_ROOT / cluster)

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.root / "logs"

    @property
    def pids(self) -> Path:
        """One file per component."""
        return self.root / "pids"

    @property
    def images(self) -> Path:
        """Image archives."""
        return self.root / "images"

    @property
    def temporary(self) -> Path:
        """TMPDIR of the components."""
        return self.root / "tmp"

    @property
    def s3(self) -> Path:
        """The objects of the S3 server: a folder per bucket."""
        return self.root / "s3"

    @property
    def audit_log(self) -> Path:
        """Every request to the API server, one JSON object a line."""
        return self.root / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.root / "kubeconfig"

    @property
    def facts(self) -> Path:
        """Written when the cluster is up."""
        return self.root / "facts.json"

    @property
    def names(self) -> Path:
        """Written first of all."""
        return self.root / "names.json"

    @property
    def owner(self) -> Path:
        """The process whose end is the cluster's; absent for a cluster that stays until `down`."""
        return self.root / "owner"

    def node(self, name: str) -> Path:
        """One node's files."""
        return self.root / "nodes" / name

    def make(self) -> None:
        """Create what components expect to exist."""
        for path in (self.pki, self.logs, self.pids, self.images, self.temporary, self.s3):
            path.mkdir(parents=True, exist_ok=True)

    def write_names(self, names: Names) -> None:
        """Claim the slot."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.names.write_text(json.dumps(asdict(names)))

    def write_owner(self, owner: str) -> None:
        """Say whose cluster this is, before there is any of it."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.owner.write_text(owner)

    def read_owner(self) -> str:
        """The cluster's owner; empty without one."""
        try:
            return self.owner.read_text()
        except OSError:
            return ""

    def read_names(self) -> Names | None:
        """The claim stored here; None without a (readable) one."""
        try:
            return Names(**json.loads(self.names.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def recorded_slots() -> dict[str, int]:
    """The slots of all clusters that have files here, by cluster."""
    found = {path.parent.name: Folder(path.parent).read_names() for path in STATE_ROOT.glob("*/names.json")}
    return {cluster: names.slot for cluster, names in found.items() if names is not None}
