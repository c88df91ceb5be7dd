"""Tells Lightning this process's rank and the world size, which the Session knows."""

from __future__ import annotations

import os

from lightning.pytorch.plugins.environments import ClusterEnvironment

from perdure.session.session import Session


class SessionEnvironment(ClusterEnvironment):
    """The ranks of a Session, which are started and connected already."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    @property
    def creates_processes_externally(self) -> bool:
        """True: an agent, torchrun or a shell has started the processes."""
        return True

    @property
    def main_address(self) -> str:
        """The address of rank 0. Lightning does not use it, because the ranks are connected."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        """See `main_address`."""
        return int(os.environ.get("MASTER_PORT", "0"))

    @staticmethod
    def detect() -> bool:
        """False: the strategy passes this environment explicitly."""
        return False

    def world_size(self) -> int:
        """The number of processes of the run."""
        return self._session.world

    def set_world_size(self, size: int) -> None:
        """Ignored: the Session knows the size, so `devices` and `num_nodes` do not count."""

    def global_rank(self) -> int:
        """This process's number in the run."""
        return self._session.rank

    def set_global_rank(self, rank: int) -> None:
        """See `set_world_size`."""

    def local_rank(self) -> int:
        """This process's number on its node."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    def node_rank(self) -> int:
        """A number that a node's processes share, 0 for that of rank 0."""
        return self._session.rank - self.local_rank()
