"""Boots, describes and removes one cluster; the Python side of `python -m e2e.cluster`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from e2e.cluster import cgroups, cleanup, control_plane, guard, images, network
from e2e.cluster.commands import Commands
from e2e.cluster.control_plane import Etcd, KubeApiserver
from e2e.cluster.folder import Folder, recorded_slots
from e2e.cluster.images import Image
from e2e.cluster.names import Names, NodeNames, check_name, choose_slot
from e2e.cluster.node import Node, Promise
from e2e.cluster.pki import Pki
from e2e.cluster.processes import ClusterError, Place, Processes
from e2e.cluster.s3 import S3
from e2e.prepare import Environments, Progress, envs, tool_folders
from e2e.prepare.basics import REPOSITORY, locked

DEFAULT_NAME = "perdure"
DEFAULT_NODES = 3
BASE_IMAGES = "base.tar"
API_SECONDS = 60.0
NODES_SECONDS = 90.0
COMMAND_SECONDS = 120.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DIGITS = REPOSITORY / "examples" / "digits"
# Sooner than the default 50 s, and late enough for a kubelet on a busy machine; an autoscaler's default is 15 s.
SOONER = ("--node-monitor-grace-period=25s", "--node-monitor-period=2s", "--horizontal-pod-autoscaler-sync-period=5s")


@dataclass(frozen=True)
class Facts:
    """What a later process must know to use a cluster that is up."""

    access_key: str
    secret_key: str
    environments: str


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `with Cluster.up("name") as cluster:` removes it at the end, whatever happens."""

    names: Names
    facts: Facts

    @classmethod
    def up(
        cls,
        name: str = DEFAULT_NAME,
        nodes: int = DEFAULT_NODES,
        progress: Progress | None = None,
        *,
        owner: int | None = None,
    ) -> Cluster:
        """Boot a new cluster, in place of any with this name and no living owner.

        When process `owner` ends, however it does, the cluster is removed.
        """
        say = progress or Progress()
        check_name(name)
        with locked(f"cluster-{name}", say):
            _demand_abandoned(name, owner)
            cleanup.remove(name)
            if owner is not None:
                _give_to(name, guard.Owner.of(owner))
            environments = envs.build(say)  # Perdure may have been edited since preparation
            with locked("cluster-slots", say):
                names = Names(name, choose_slot(name, recorded_slots().values(), network.host_routes()), nodes)
                Folder.of(name).write_names(names)
            facts = Facts("perdure", secrets.token_hex(20), str(environments.root))
            cluster = cls(names, facts)
            try:
                cluster._boot(say)
            except BaseException:
                cleanup.remove(name)
                raise
            return cluster

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME) -> Cluster:
        """The cluster of this name that is up already."""
        check_name(name)
        folder = Folder.of(name)
        names = folder.read_names()
        if names is None or not folder.facts.exists():
            raise ClusterError(f"no cluster {name} is up here: `python -m e2e.cluster up --name {name}`")
        return cls(names, Facts(**json.loads(folder.facts.read_text())))

    def down(self) -> None:
        """Remove it and all traces of it."""
        with locked(f"cluster-{self.names.cluster}", Progress()):
            cleanup.remove(self.names.cluster)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def folder(self) -> Folder:
        """Its files: logs, keys, objects."""
        return Folder.of(self.names.cluster)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder.kubeconfig

    @property
    def audit_log(self) -> Path:
        """Every request, one JSON object a line, level Metadata, without the stage RequestReceived."""
        return self.folder.audit_log

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names."""
        return tuple(node.name for node in self.names.nodes)

    @property
    def images(self) -> tuple[str, ...]:
        """What manifests may name from the start."""
        return (images.OPERATOR, images.DIGITS)

    @property
    def s3(self) -> S3:
        """The S3 server."""
        return S3(
            address=str(self.names.control_plane),
            netns=self.names.netns,
            access_key=self.facts.access_key,
            secret_key=self.facts.secret_key,
            folder=self.folder.s3,
            processes=self._processes,
        )

    def another_s3(self, name: str, port: int) -> S3:
        """A server beside the cluster's, with objects of its own; not started."""
        return replace(self.s3, name=name, port=port, folder=self.folder.root / name)

    @property
    def env(self) -> dict[str, str]:
        """An environment in which kubectl, helm and clients find this cluster."""
        return self._commands.env

    def kubectl(
        self,
        *words: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - subprocess's own word
        timeout: float = COMMAND_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; with `check`, a failure is raised with kubectl's own words."""
        return self._commands.run("kubectl", *words, check=check, input=input, timeout=timeout)

    def helm(
        self, *words: str | Path, check: bool = True, timeout: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run helm as the administrator."""
        return self._commands.run("helm", *words, check=check, input=None, timeout=timeout)

    def image(self, name: str, folder: Path) -> None:
        """Give every node an image with the trainer's environment and that folder's Python files in /workspace."""
        self._import(images.trainer_image(name, self._environments, folder))

    def forget_image(self, name: str, node: str) -> None:
        """Make an image unknown to this node: where there is no registry, no new pod there can have it."""
        self._node(node).remove_image(images.normalised(name))

    def operator_image(self, name: str) -> None:
        """Give every node the operator's image under another name, as if it were another version."""
        self._import(images.operator_image(name, self._environments))

    def _import(self, image: Image) -> None:
        archive = self.folder.images / f"{image.name.replace('/', '-').replace(':', '-')}.tar"
        images.write_archive([image], archive)
        for node in self._nodes:
            node.import_images(archive)

    @property
    def authority(self) -> Path:
        """The certificate that those of this cluster are checked against."""
        return self._pki.authority

    def certificate(self, name: str, *others: str) -> tuple[Path, Path]:
        """A certificate for a server beside the control plane, also under other names, and the key."""
        self._pki.issue(name, f"/CN={name}", [f"IP:{self.names.control_plane}", *others])
        return self._pki.certificate(name), self._pki.key(name)

    def run_beside(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        """Run a controller beside the control plane, with the administrator's rights."""
        config = {"KUBECONFIG": str(self.kubeconfig)}
        self._processes.start(name, argv, Place(self.names.netns), config | dict(env or {}))

    def device_plugin(self, node: str, resource: str, ids: Sequence[str]) -> list[str | Path]:
        """The program that gives this node's kubelet such devices, and ends with its input; see its source."""
        registry = self._node(node).plugins
        return [tool_folders()["deviceplugin"] / "device-plugin", registry, resource, *ids]

    def wait(self, what: str, seconds: float, done: Callable[[], bool]) -> None:
        """Wait until done; ends early when a component dies."""
        self._processes.wait(what, seconds, done)

    def add_node(self, number: int, name: str, promise: Promise) -> Node:
        """Start a node whose Node object exists, with all images; for a provider that creates those."""
        node = self._described(self.names.added_node(number, name), promise)
        network.add_node(self.names, node.node)
        node.start_runtime(self.folder.images / BASE_IMAGES)
        for archive in self.folder.images.glob("*.tar"):
            node.import_images(archive)
        node.start_agents(self._server.url)
        return node

    def freeze_node(self, name: str) -> None:
        """Stop the node's kubelet: its containers run on, the control plane hears nothing."""
        self._processes.freeze(self._node(name).kubelet_name)

    def thaw_node(self, name: str) -> None:
        """Let it go on."""
        self._processes.thaw(self._node(name).kubelet_name)

    def starve_node(self, name: str) -> None:
        """Restart the node's kubelet with a threshold above this machine's memory: it is out of memory for it."""
        everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._node(name).restart_kubelet(evicts_below=everything)

    def feed_node(self, name: str) -> None:
        """Let it have its memory again."""
        self._node(name).restart_kubelet()

    def pod_processes(self, uid: str) -> set[int]:
        """The pod's processes, as this machine numbers them, its pause container's among them."""
        folders = cgroups.folders_named(self.names.cgroup, f"pod{uid}")
        root = cgroups.hierarchies()[0]
        return {pid for folder in folders for pid in cgroups.pids(folder.relative_to(root).as_posix())}

    def dead_components(self) -> str:
        """Which components have died, with the ends of their logs; empty when all run."""
        return "\n".join(f"{name} has died: {self._processes.tail(name)}" for name in self._processes.dead())

    def components(self) -> dict[str, int | None]:
        """The process of each component; None for one that has died."""
        return {name: self._processes.pid(name) for name in self._processes.names()}

    @property
    def _processes(self) -> Processes:
        path = ":".join([*map(str, tool_folders().values()), SYSTEM_PATH])
        return Processes(self.folder, self.names.components, path)

    @property
    def _commands(self) -> Commands:
        folders = tuple(tool_folders().values())
        return Commands(self.kubeconfig, self.folder.temporary, folders, self.dead_components)

    @property
    def _environments(self) -> Environments:
        """Those of the source at boot: an edit meanwhile must not mix two versions."""
        return Environments(Path(self.facts.environments))

    @property
    def _pki(self) -> Pki:
        return Pki(self.folder.pki)

    @property
    def _nodes(self) -> tuple[Node, ...]:
        return tuple(self._described(node) for node in self.names.nodes)

    def _described(self, node: NodeNames, promise: Promise | None = None) -> Node:
        processes = replace(self._processes, part=node.port)
        folder, environments_root = self.folder.node(node.port), self._environments.root
        return Node(self.names, node, folder, processes, self._pki, environments_root, promise)

    def _node(self, name: str) -> Node:
        for node in self._nodes:
            if node.node.name == name:
                return node
        raise ClusterError(f"cluster {self.names.cluster} has no node {name}: {', '.join(self.nodes)}")

    @property
    def _server(self) -> KubeApiserver:
        binaries = tool_folders()["kubernetes"]
        return KubeApiserver(
            binary=binaries / "kube-apiserver",
            pki=self._pki,
            etcd=Etcd(binaries / "etcd", self.folder.root / "etcd", "127.0.0.1", 2379),
            address=str(self.names.control_plane),
            port=6443,
            services=str(self.names.services),
            audit_policy=self.folder.root / "audit-policy.json",
            audit_log=self.audit_log,
        )

    def _boot(self, progress: Progress) -> None:
        started = time.monotonic()
        self.folder.make()
        progress.say(f"cluster {self.names.cluster}: {len(self.nodes)} nodes in {self.names.block}")
        cgroups.make(f"{self.names.components}/{self._processes.part}")
        cgroups.weigh(self.names.cgroup, len(self.nodes))  # all pods of all nodes would share what one process gets
        network.create(self.names)
        archive = self.folder.images / BASE_IMAGES
        images.write_archive(images.base_images(self._environments, DIGITS), archive)
        with ThreadPoolExecutor(len(self.nodes) + 1) as pool:
            waiting: list[Future[None]] = [pool.submit(node.start_runtime, archive) for node in self._nodes]
            waiting.append(pool.submit(self.s3.start))
            self._start_api()
            progress.say("kube-apiserver is ready")
            for future in waiting:
                future.result()
        self._start_controllers()
        for node in self._nodes:
            node.start_agents(self._server.url)
        self._processes.wait("all nodes Ready", NODES_SECONDS, self._nodes_ready)
        self.folder.facts.write_text(json.dumps(asdict(self.facts)))
        progress.say(f"cluster {self.names.cluster} is up after {time.monotonic() - started:.1f} s")

    def _start_api(self) -> None:
        place = Place(self.names.netns)
        self._processes.start("etcd", self._server.etcd.argv(), place)
        addresses = [self._server.address, str(self.names.api_service)]
        control_plane.issue_certificates(self._pki, addresses)
        self._pki.issue("scheduler", "/CN=system:kube-scheduler")
        self._pki.issue("proxy", "/CN=system:kube-proxy")
        self.kubeconfig.write_text(self._pki.kubeconfig("admin", self._server.url))
        self._server.audit_policy.write_text(json.dumps(control_plane.AUDIT_POLICY))
        self._processes.start("kube-apiserver", self._server.argv(), place)
        self._processes.wait("kube-apiserver", API_SECONDS, self._succeeds("get", "--raw", "/readyz"))

    def _start_controllers(self) -> None:
        binaries, place = tool_folders()["kubernetes"], Place(self.names.netns)
        config = {name: self.folder.root / f"{name}.kubeconfig" for name in ("controller-manager", "scheduler")}
        for name, path in config.items():
            path.write_text(self._pki.kubeconfig(name, self._server.url))
        manager = control_plane.controller_manager_argv(
            binaries / "kube-controller-manager", self._pki, config["controller-manager"], SOONER
        )
        scheduler = control_plane.scheduler_argv(binaries / "kube-scheduler", config["scheduler"])
        self._processes.start("kube-controller-manager", manager, place)
        self._processes.start("kube-scheduler", scheduler, place)

    def _succeeds(self, *words: str) -> Callable[[], bool]:
        return lambda: self.kubectl(*words, check=False).returncode == 0

    def _nodes_ready(self) -> bool:
        shown = self.kubectl("get", "nodes", "--output=json", check=False)
        if shown.returncode != 0:
            return False
        ready = sum(_is_ready(node) for node in json.loads(shown.stdout)["items"])
        # pods cannot be created before the controllers have made this
        return ready == len(self.nodes) and self._succeeds("get", "serviceaccount", "default")()


def _demand_abandoned(name: str, pid: int | None) -> None:
    """Two test runs on one machine must not take each other's cluster away."""
    owner = guard.Owner.read(Folder.of(name).read_owner())
    if owner is not None and owner.pid != pid and owner.alive():
        raise ClusterError(
            f"cluster {name} belongs to process {owner.pid}, which still runs: wait for its end, or end it"
        )


def _give_to(name: str, owner: guard.Owner) -> None:
    guard.start(name, owner)
    Folder.of(name).write_owner(str(owner))


def _is_ready(node: dict[str, dict[str, list[dict[str, str]]]]) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in node["status"]["conditions"]}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")
