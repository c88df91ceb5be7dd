"""Every name and address of a cluster, derived from its name and its slot; nothing here touches the machine.

A slot is one of 256 blocks of the shared address space 100.64.0.0/10. A name has its favourite slot; when another
cluster or a route of the host has that one, the next free one is taken, so that any two clusters live side by side.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network

SPACE = IPv4Network("100.64.0.0/10")
BLOCK_PREFIX = 18
SLOTS = 1 << BLOCK_PREFIX - SPACE.prefixlen
MAX_NODES = 31
PREFIX = "perdure"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")


class NameRefused(ValueError):
    """The name cannot be a cluster's."""


@dataclass(frozen=True)
class NodeNames:
    """What belongs to node number `number`."""

    name: str
    number: int
    address: IPv4Address
    pods: IPv4Network
    netns: str
    cgroup: str
    port: str


@dataclass(frozen=True)
class Names:
    """What belongs to one cluster."""

    cluster: str
    slot: int
    node_count: int

    def __post_init__(self) -> None:
        check_name(self.cluster)
        if not 1 <= self.node_count <= MAX_NODES:
            raise NameRefused(
                f"cluster {self.cluster}: {self.node_count} nodes asked for, 1 to {MAX_NODES} are possible"
            )

    @property
    def block(self) -> IPv4Network:
        """All addresses of the cluster."""
        return block_of(self.slot)

    @property
    def node_network(self) -> IPv4Network:
        """The wire that nodes, control plane and host share."""
        return self._subnet(0)

    @property
    def pods(self) -> IPv4Network:
        """The half of the block in which each node has its part."""
        return next(iter(self.block.subnets(prefixlen_diff=1)))

    @property
    def services(self) -> IPv4Network:
        """The half of the block for ClusterIPs."""
        return list(self.block.subnets(prefixlen_diff=1))[1]

    @property
    def api_service(self) -> IPv4Address:
        """The ClusterIP of the API server: Kubernetes takes the first."""
        return self.services[1]

    @property
    def control_plane(self) -> IPv4Address:
        """The API server's and the S3 server's address."""
        return self.node_network[1]

    @property
    def host(self) -> IPv4Address:
        """This machine's own address on the cluster's wire."""
        return self.node_network[254]

    @property
    def host_device(self) -> str:
        """The one network device in the host's namespace; 15 characters at most."""
        return f"{PREFIX}{self.slot}"

    @property
    def netns(self) -> str:
        """The control plane's network namespace."""
        return f"{PREFIX}-{self.cluster}-cp"

    @property
    def cgroup(self) -> str:
        """The cgroup, in every hierarchy, that holds all the cluster's processes."""
        return cgroup_of(self.cluster)

    @property
    def components(self) -> str:
        """The cgroup of the processes that are not in pods."""
        return f"{self.cgroup}/components"

    @property
    def nodes(self) -> tuple[NodeNames, ...]:
        """The nodes in order."""
        return tuple(self._node(number) for number in range(1, self.node_count + 1))

    @property
    def possible_nodes(self) -> tuple[NodeNames, ...]:
        """These, and those that an autoscaler may add later."""
        return tuple(self._node(number) for number in range(1, MAX_NODES + 1))

    def added_node(self, number: int, name: str) -> NodeNames:
        """A node that came later, under the name that the autoscaler has given it."""
        return replace(self._node(number), name=name)

    def _node(self, number: int) -> NodeNames:
        name = f"{self.cluster}-n{number}"
        return NodeNames(
            name=name,
            number=number,
            address=self.node_network[10 + number],
            pods=self._subnet(number),
            netns=f"{PREFIX}-{name}",
            cgroup=f"{self.cgroup}/n{number}",
            port=f"n{number}",
        )

    def _subnet(self, index: int) -> IPv4Network:
        first = int(self.block.network_address) + index * 256
        return IPv4Network((first, 24))


def check_name(cluster: str) -> None:
    """Refuse what cannot be part of host names, cgroups and folders."""
    if not _NAME.fullmatch(cluster):
        raise NameRefused(
            f"cluster name {cluster!r}: use 1 to 20 of a-z, 0-9 and '-', starting with a letter, not ending with '-'"
        )


def cgroup_of(cluster: str) -> str:
    """The cgroup of a cluster of which nothing else may be known any more."""
    return f"{PREFIX}-{cluster}"


def netns_pattern(cluster: str) -> re.Pattern[str]:
    """Matches the network namespaces of this cluster and of no other, however similar its name."""
    return re.compile(rf"{PREFIX}-{re.escape(cluster)}-(cp|n\d+)")


def block_of(slot: int) -> IPv4Network:
    """The addresses of a slot."""
    first = int(SPACE.network_address) + slot * (1 << 32 - BLOCK_PREFIX)
    return IPv4Network((first, BLOCK_PREFIX))


def choose_slot(cluster: str, taken: Iterable[int], routes: Iterable[IPv4Network]) -> int:
    """The first free slot at or after the name's favourite one."""
    favourite = int.from_bytes(hashlib.sha256(cluster.encode()).digest()[:2], "big") % SLOTS
    occupied, known_routes = set(taken), list(routes)
    for offset in range(SLOTS):
        slot = (favourite + offset) % SLOTS
        if slot not in occupied and not any(block_of(slot).overlaps(route) for route in known_routes):
            return slot
    raise NameRefused(
        f"cluster {cluster}: every address block in {SPACE} is taken, by clusters or by the host's routes"
    )
