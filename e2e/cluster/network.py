"""The cluster's network: a namespace per node and one for the control plane, joined by a bridge; one veth to the host.

No namespace has a default route: nothing leaves the machine. Removing the namespaces removes every device and route.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path

from e2e.cluster.names import Names, NodeNames
from e2e.cluster.processes import ClusterError

BRIDGE = "br0"
# Its own, because otherwise it has the lowest of its ports: as nodes come and go, the control plane would be
# unreachable for a while.
BRIDGE_ADDRESS = "02:00:00:00:00:fe"
NODE_DEVICE = "eth0"
HOST_PORT = "host"
NETNS = Path("/run/netns")
SYSCTLS = ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables")


def create(names: Names) -> None:
    """Make all namespaces, devices and routes."""
    for netns in (names.netns, *(node.netns for node in names.nodes)):
        _ip("netns", "add", netns)
        _forward(netns)
    _batch(names.netns, control_plane_commands(names))
    for node in names.nodes:
        _batch(node.netns, node_commands(names, node))
    _batch("", host_commands(names))


def control_plane_commands(names: Names) -> list[str]:
    """The bridge, and on it the control plane's address and a port for each node and for the host."""
    prefix = names.node_network.prefixlen
    commands = [
        "link set lo up",
        f"link add {BRIDGE} address {BRIDGE_ADDRESS} type bridge",
        f"link set {BRIDGE} up",
        f"address add {names.control_plane}/{prefix} dev {BRIDGE}",
        f"link add {HOST_PORT} type veth peer name {names.host_device} netns 1",
        f"link set {HOST_PORT} master {BRIDGE} up",
    ]
    for node in names.nodes:
        commands += _port_commands(node)
    return commands + _routes(names)


def node_commands(names: Names, node: NodeNames) -> list[str]:
    """The node's address and its ways to the pods of the others, present or possible."""
    return [
        "link set lo up",
        f"link set {NODE_DEVICE} up",
        f"address add {node.address}/{names.node_network.prefixlen} dev {NODE_DEVICE}",
        *_routes(names, excepted=node.number),
    ]


def host_commands(names: Names) -> list[str]:
    """This machine's address on the wire and its ways to the pods."""
    return [
        f"link set {names.host_device} up",
        f"address add {names.host}/{names.node_network.prefixlen} dev {names.host_device}",
        *_routes(names),
    ]


def add_node(names: Names, node: NodeNames) -> None:
    """The namespace, device and routes of a later node; the others have the route to its pods already."""
    _ip("netns", "add", node.netns)
    _forward(node.netns)
    _batch(names.netns, _port_commands(node))
    _batch(node.netns, node_commands(names, node))


def remove_node(node: NodeNames) -> None:
    """Remove that again; what runs in it must have ended."""
    _ip("netns", "delete", node.netns)


def remove(pattern: re.Pattern[str]) -> None:
    """Remove the namespaces with matching names, and with them all that is in them."""
    for path in NETNS.glob("*"):
        if pattern.fullmatch(path.name):
            _ip("netns", "delete", path.name)


def remove_host_device(device: str) -> None:
    """Remove a veth, if the kernel has not: it does so some time after the namespace of the other end is gone."""
    there = Path("/sys/class/net", device)
    try:
        if there.exists():
            _ip("link", "delete", device)
    except ClusterError:
        if there.exists():
            raise


def host_routes() -> list[IPv4Network]:
    """What this machine reaches by a route more special than the default one."""
    shown = subprocess.run(["ip", "-json", "-4", "route", "show"], capture_output=True, text=True, check=True).stdout
    destinations = [route["dst"] for route in json.loads(shown or "[]") if route["dst"] != "default"]
    return [IPv4Network(destination) for destination in destinations]


def _routes(names: Names, excepted: int = 0) -> list[str]:
    return [f"route add {node.pods} via {node.address}" for node in names.possible_nodes if node.number != excepted]


def _port_commands(node: NodeNames) -> list[str]:
    return [
        f"link add {node.port} type veth peer name {NODE_DEVICE} netns {node.netns}",
        f"link set {node.port} master {BRIDGE} up",
    ]


def _forward(netns: str) -> None:
    # `ip netns exec` would mount another /sys; these files show the namespace of the process that opens them
    script = 'for name; do [ ! -e "/proc/sys/$name" ] || echo 1 > "/proc/sys/$name"; done'
    subprocess.run(["nsenter", f"--net={NETNS / netns}", "/bin/sh", "-c", script, "sysctl", *SYSCTLS], check=True)


def _ip(*words: str) -> None:
    _checked(["ip", *words], "")


def _batch(netns: str, commands: Sequence[str]) -> None:
    _checked(["ip", *(["-netns", netns] if netns else []), "-batch", "-"], "\n".join(commands) + "\n")


def _checked(argv: Sequence[str], text: str) -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}\n{text}".strip())
