"""One node: containerd, kubelet and kube-proxy in a network namespace and a mount namespace of their own.

Their mounts are visible to no other process and go when they end. The host's /usr, /lib, /bin and /opt/perdure are
bound read-only into every container, so images are nearly empty and torch is not copied per node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cgroups, images, network
from e2e.cluster.names import Names, NodeNames
from e2e.cluster.pki import Pki
from e2e.cluster.processes import ClusterError, Place, Processes
from e2e.prepare import tool_folders

START_SECONDS = 30.0
EVICTED_BELOW = 100 << 20
"""Bytes of memory left: a kubelet promises them to no pod."""
# usr-merged or not: these are bound as they are, a link by what it points to
SHARED_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt/perdure")
CONTAINERD = """\
version = 3
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{folder}/containerd.sock"
[debug]
  level = "warn"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{folder}/container.json"
[plugins."io.containerd.grpc.v1.cri"]
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
"""


@dataclass(frozen=True)
class Promise:
    """What an autoscaler has said that its node would have for pods: part of what this machine has."""

    millicores: int
    memory: int
    """In bytes."""
    pods: int


@dataclass(frozen=True)
class Node:
    """What starts and feeds one node."""

    names: Names
    node: NodeNames
    folder: Path
    processes: Processes
    pki: Pki
    environments: Path
    promise: Promise | None = None
    """Of a node that came later, whose Node object is there before its kubelet."""

    @property
    def components(self) -> str:
        """The cgroup of what runs the pods, as `cgroup` is that of the pods."""
        return f"{self.processes.group}/{self.processes.part}"

    @property
    def plugins(self) -> Path:
        """Where its kubelet looks for the sockets of plugins."""
        return self._kubelet_folder / "plugins_registry"

    @property
    def _kubelet_folder(self) -> Path:
        return self.folder / "kubelet"

    @property
    def kubelet_name(self) -> str:
        """The component's name."""
        return f"kubelet-{self.node.port}"

    def start_runtime(self, archive: Path) -> None:
        """containerd, with the images of this archive; needs no API server."""
        (self.folder / "cni").mkdir(parents=True, exist_ok=True)
        _write(self.folder / "cni" / "10-pods.conflist", _cni(self.folder, self.node))
        _write(self.folder / "container.json", _base_container(_tool("containerd", "ctr")))
        (self.folder / "containerd.toml").write_text(
            CONTAINERD.format(folder=self.folder, cni=tool_folders()["cni"], pause=images.PAUSE)
        )
        cgroups.make(self.node.cgroup)
        cgroups.make(self.components)
        argv: list[str | Path] = [_tool("containerd", "containerd"), "--config", self.folder / "containerd.toml"]
        # preparation keeps environments that a living process names, also before the first pod
        env = {"PERDURE_ENVIRONMENTS": str(self.environments)}
        self.processes.start(self._runtime_name, argv, Place(self.node.netns, new_mounts=True), env)
        self.processes.wait(f"containerd of {self.node.name}", START_SECONDS, self._runtime_answers)
        self.import_images(archive)

    def start_agents(self, server: str) -> None:
        """kubelet and kube-proxy; the API server must be there."""
        self.pki.issue(self.node.port, f"/O=system:nodes/CN=system:node:{self.node.name}", [f"IP:{self.node.address}"])
        proxy_config = self.folder / "proxy.kubeconfig"
        self._kubelet_config.write_text(self.pki.kubeconfig(self.node.port, server))
        proxy_config.write_text(self.pki.kubeconfig("proxy", server))
        _write(self.folder / "proxy.json", self._proxy(proxy_config))
        self._start_kubelet()
        proxy: list[str | Path] = [_tool("kubernetes", "kube-proxy"), f"--config={self.folder / 'proxy.json'}"]
        self.processes.start(self._proxy_name, proxy, self._place)

    def restart_kubelet(self, *, evicts_below: int | None = None) -> None:
        """Its pods run on meanwhile; the new one evicts them while less than so many bytes of memory are left."""
        self.processes.stop(self.kubelet_name)
        self._start_kubelet(evicts_below)

    def _start_kubelet(self, evicts_below: int | None = None) -> None:
        _write(self.folder / "kubelet.json", {**self._kubelet(), **(_evicting(evicts_below) if evicts_below else {})})
        kubelet: list[str | Path] = [
            _tool("kubernetes", "kubelet"),
            f"--kubeconfig={self._kubelet_config}",
            f"--config={self.folder / 'kubelet.json'}",
            f"--root-dir={self._kubelet_folder}",
            f"--cert-dir={self.folder / 'kubelet-certs'}",
            f"--hostname-override={self.node.name}",
            f"--node-ip={self.node.address}",
        ]
        self.processes.start(self.kubelet_name, kubelet, self._place)

    @property
    def _kubelet_config(self) -> Path:
        return self.folder / "kubelet.kubeconfig"

    @property
    def _place(self) -> Place:
        return Place(self.node.netns, mounts_of=self._runtime_name)

    def stop(self) -> None:
        """End all that runs on the node and remove it from this machine, but for its logs."""
        for name in (self.kubelet_name, self._proxy_name, self._runtime_name):
            self.processes.forget(name)
        for group in (self.components, self.node.cgroup):  # a runtime that lives would tidy up at the same time
            cgroups.kill(group)
            cgroups.remove(group)
        network.remove_node(self.node)
        shutil.rmtree(self.folder)

    def import_images(self, archive: Path) -> None:
        """Make the images of a docker archive known to this node."""
        done = self._ctr("--namespace=k8s.io", "images", "import", str(archive))
        if done.returncode != 0:
            raise ClusterError(f"{self.node.name} cannot import {archive}: {done.stderr.strip()}")

    def remove_image(self, reference: str) -> None:
        """Make an image unknown to this node; containers that were made from it run on."""
        done = self._ctr("--namespace=k8s.io", "images", "remove", "--sync", reference)
        if done.returncode != 0:
            raise ClusterError(f"{self.node.name} cannot remove {reference}: {done.stderr.strip()}")

    @property
    def _runtime_name(self) -> str:
        return f"containerd-{self.node.port}"

    @property
    def _proxy_name(self) -> str:
        return f"kube-proxy-{self.node.port}"

    def _runtime_answers(self) -> bool:
        return self._ctr("version").returncode == 0

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        ctr, socket = str(_tool("containerd", "ctr")), str(self.folder / "containerd.sock")
        return subprocess.run([ctr, "--address", socket, *words], capture_output=True, text=True, check=False)

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "x509": {"clientCAFile": str(self.pki.authority)},
                "webhook": {"enabled": True},
                "anonymous": {"enabled": False},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self.pki.certificate(self.node.port)),
            "tlsPrivateKeyFile": str(self.pki.key(self.node.port)),
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.node.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            # a full disk of the host must not evict pods, nor remove images that cannot be pulled again
            "evictionHard": {
                "memory.available": str(EVICTED_BELOW),
                "nodefs.available": "0%",
                "imagefs.available": "0%",
            },
            "evictionPressureTransitionPeriod": "5s",
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "4s",
            # a change is told at once; what has not changed would go to every kubelet and proxy each time
            "nodeStatusReportFrequency": "1m",
            "nodeLeaseDurationSeconds": 20,
            "resolvConf": "",
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "serializeImagePulls": False,
            **(_promised(self.promise) if self.promise else {}),
        }

    def _proxy(self, kubeconfig: Path) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            # each change is written when it comes; all of it again every half minute heals nothing here
            "iptables": {"syncPeriod": "1h"},
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "hostnameOverride": self.node.name,
            "clusterCIDR": str(self.names.pods),
            # these limits are the whole machine's, not the namespace's
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }


def _promised(promise: Promise) -> dict[str, object]:
    """Of the kubelet's configuration: what makes it keep the promise."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") - EVICTED_BELOW - promise.memory
    cpu = 1000 * (os.cpu_count() or 1) - promise.millicores
    return {
        "registerNode": False,
        "maxPods": promise.pods,
        "systemReserved": {"cpu": f"{max(cpu, 0)}m", "memory": str(max(memory, 0))},
    }


def _evicting(below: int) -> dict[str, object]:
    """The part of the kubelet's configuration that makes it evict in time. A hard limit would leave pods no memory to
    ask for.

    A kubelet that ignores disks evicts no pod: it asks for the images' disk before it looks at memory.
    """
    return {
        "localStorageCapacityIsolation": True,
        "evictionSoft": {"memory.available": str(below)},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
    }


def _cni(folder: Path, node: NodeNames) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(folder / "addresses"),
            "ranges": [[{"subnet": str(node.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _base_container(ctr: Path) -> dict[str, object]:
    """containerd's own default container, plus the folders that are shared."""
    shown = subprocess.run([str(ctr), "oci", "spec"], capture_output=True, text=True, check=True).stdout
    spec: dict[str, object] = json.loads(shown)
    mounts, linux, process = spec["mounts"], spec["linux"], spec["process"]
    if not isinstance(mounts, list) or not isinstance(linux, dict) or not isinstance(process, dict):
        raise ClusterError("`ctr oci spec` shows another shape than this version expects")
    for folder in SHARED_FOLDERS:
        if Path(folder).exists():
            options = ["rbind", "ro", "nosuid"]
            mounts.append({"destination": folder, "type": "bind", "source": folder, "options": options})
    linux.pop("resources", None)
    process.pop("rlimits", None)
    return spec


def _tool(module: str, program: str) -> Path:
    return tool_folders()[module] / program


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))
