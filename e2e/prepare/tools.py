"""Builds the cluster's programs from Go modules pinned in e2e/cluster/tools/<module>/go.mod and go.sum.

The binaries are in `<cache>/tools/<module>-<key>/bin/`; the key covers that folder and the build flags, so a rebuild
happens only when one of them changes. Each binary appears by a rename, and an interrupted build continues where it was.
Go's own caches (6 GB in 90,000 files) live in the cache folder while building and are dropped when everything is there.
What two modules pin alike is compiled once if one call of build() makes both: containerd, helm and karpenter have
kubernetes' libraries.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.prepare.basics import REPOSITORY, PrepareError, Progress, cache_dir, content_key, locked

PINS = REPOSITORY / "e2e" / "cluster" / "tools"
_DROPPED = "go.dropped-"
GO_HINT = "install Go >= 1.26.5 (or any Go >= 1.21 that may fetch its toolchain) and put it on PATH"


@dataclass(frozen=True)
class Module:
    """One Go module with its pins, and the programs built from it, in the order they are needed."""

    name: str
    programs: tuple[tuple[str, str], ...]
    ldflags: str = "-s -w"
    tags: str = ""
    cgo: bool = False
    inlines: bool = False
    """Whether functions are inlined. Without that and a debugger's notes, Go needs two thirds of its time."""
    manifests: tuple[str, tuple[str, ...]] | None = None
    """A module and folders of it, copied beside the binaries: manifests that the program needs."""

    @property
    def pins(self) -> Path:
        """The folder with its go.mod, its go.sum and, for a program of our own, its source."""
        return PINS / self.name

    def flags(self) -> list[str]:
        """Arguments of `go build` besides the package."""
        tags = ["-tags", self.tags] if self.tags else []
        compiler = ["-gcflags=all=-dwarf=false"] if self.inlines else ["-gcflags=all=-dwarf=false -l"]
        # Go's own packages are small, and the hottest: the last pattern that matches a package counts.
        compiler += ["-gcflags=std=-dwarf=false"]
        return ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", self.ldflags, *compiler, *tags]

    def folder(self) -> Path:
        """Where its binaries belong."""
        parts = [file.read_bytes() for file in sorted(self.pins.iterdir())]
        flags = [*self.flags(), f"cgo={self.cgo}"]
        return (
            cache_dir() / "tools" / f"{self.name}-{content_key([*parts, *(flag.encode() for flag in flags)])}" / "bin"
        )

    def manifests_folder(self) -> Path:
        """Where its manifests are."""
        return self.folder().parent / "manifests"

    def unbuilt(self) -> list[tuple[str, str]]:
        """The programs that are not in the cache yet."""
        return [(program, package) for program, package in self.programs if not (self.folder() / program).exists()]


_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"

MODULES = (
    Module(
        "kubernetes",
        (
            ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            ("etcd", "go.etcd.io/etcd/server/v3"),
            ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ),
        ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v1.37.0",
    ),
    Module(
        "containerd",
        (
            ("containerd", f"{_CONTAINERD}/containerd"),
            ("containerd-shim-runc-v2", f"{_CONTAINERD}/containerd-shim-runc-v2"),
            ("ctr", f"{_CONTAINERD}/ctr"),
        ),
    ),
    Module("runc", (("runc", "github.com/opencontainers/runc"),), tags="seccomp", cgo=True),
    Module(
        "cni",
        (
            ("bridge", f"{_CNI}/main/bridge"),
            ("host-local", f"{_CNI}/ipam/host-local"),
            ("loopback", f"{_CNI}/main/loopback"),
        ),
    ),
    Module("pause", (("pause", "perdure/tools/pause"),)),
    Module("deviceplugin", (("device-plugin", "perdure/tools/deviceplugin"),)),
    Module("versitygw", (("versitygw", "perdure/tools/versitygw"),)),
    Module("helm", (("helm", "helm.sh/helm/v4/cmd/helm"),)),
)

# only `make bench-scale` needs these: not built with the others, and as fast as their authors' own
FOR_SCALE = (
    Module("kwok", (("kwok", "sigs.k8s.io/kwok/cmd/kwok"),), inlines=True),
    Module(
        "jobset",
        (("jobset", "sigs.k8s.io/jobset"),),
        inlines=True,
        manifests=("sigs.k8s.io/jobset", ("config/components",)),
    ),
)

# only tests need it
FOR_AUTOSCALING = (
    Module(
        "karpenter",
        (("karpenter", "sigs.k8s.io/karpenter/kwok"),),  # its cloud is called kwok, and so is the result
        manifests=("sigs.k8s.io/karpenter", ("pkg/apis/crds", "kwok/apis/crds")),
    ),
)

# for tests of the API and of storage on a machine that cannot run the cluster
WITHOUT_ROOT = tuple(module for module in MODULES if module.name in {"kubernetes", "versitygw"})

# what `make release` needs, wherever it runs
FOR_RELEASE = tuple(module for module in MODULES if module.name == "helm")


def tool_folders() -> dict[str, Path]:
    """The folder of each module's binaries, whether built yet or not."""
    return {module.name: module.folder() for module in MODULES}


def special_programs() -> dict[str, Path]:
    """What FOR_SCALE and FOR_AUTOSCALING build, by program."""
    modules = (*FOR_SCALE, *FOR_AUTOSCALING)
    return {program: module.folder() / program for module in modules for program, _ in module.programs}


def manifests_of(name: str) -> Path:
    """The manifests of one of FOR_SCALE and FOR_AUTOSCALING."""
    modules = (*FOR_SCALE, *FOR_AUTOSCALING)
    return next(module.manifests_folder() for module in modules if module.name == name)


def unbuilt(modules: Sequence[Module] = MODULES) -> list[str]:
    """The programs that are not in the cache."""
    return [program for module in modules for program, _ in module.unbuilt()]


def build(progress: Progress, modules: Sequence[Module] = MODULES) -> None:
    """Build the missing programs, then drop Go's caches."""
    remove_dropped()
    if not unbuilt(modules):
        return
    with locked("tools", progress):
        waiting = unbuilt(modules)
        if waiting:
            progress.say(f"building {', '.join(waiting)}, once: the cluster's take about 8 minutes on 2 cores")
        for module in modules:
            _build_missing(module, progress)
        progress.say("dropping Go's build caches, in the background")
        _drop()


def _drop() -> subprocess.Popen[bytes] | None:
    """Go's caches: gone at once for every reader, and removed file by file while others work."""
    with suppress(FileNotFoundError):
        _go_caches().rename(_go_caches().with_name(f"{_DROPPED}{os.getpid()}"))
    return remove_dropped()


def remove_dropped() -> subprocess.Popen[bytes] | None:
    """Dropped caches that may still exist, because their remover was killed."""
    dropped = [str(path) for path in cache_dir().glob(f"{_DROPPED}*")]
    quiet, argv = subprocess.DEVNULL, ["nice", "rm", "-rf", "--", *dropped]
    return subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True) if dropped else None


def _go_caches() -> Path:
    return cache_dir() / "go"


def _build_missing(module: Module, progress: Progress) -> None:
    """All in one call of Go: it reads the sources of a module once, and links one program while it compiles another."""
    waiting = module.unbuilt()
    if not waiting:
        return
    go = shutil.which("go")
    if go is None:
        raise PrepareError(f"no Go here: {GO_HINT}")
    folder = module.folder()
    unfinished = folder / ".unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    packages = [package for _, package in waiting]
    argv: list[str | Path] = [go, "build", *module.flags(), "-o", unfinished, *packages]
    doing = f"building {', '.join(program for program, _ in waiting)}"
    progress.run(doing, argv, env=_environment(module), cwd=module.pins)
    if module.manifests:
        _copy_manifests(go, module, *module.manifests)
    for program, package in waiting:
        (unfinished / named_by_go(package)).replace(folder / program)
    shutil.rmtree(unfinished)


def named_by_go(package: str) -> str:
    """What Go calls the program of a package: the last word of its path that is no version."""
    return next(word for word in reversed(package.split("/")) if not re.fullmatch(r"v\d+", word))


def _environment(module: Module) -> dict[str, str]:
    return {
        **os.environ,
        "GOCACHE": str(_go_caches() / "build"),
        "GOMODCACHE": str(_go_caches() / "mod"),
        "GOFLAGS": "-modcacherw",  # without it the module cache can only be removed file by file
        "GOWORK": "off",
        "GOGC": "400",  # the compiler collects its own garbage less often: a sixth of its CPU
        "CGO_ENABLED": "1" if module.cgo else "0",
    }


def _copy_manifests(go: str, module: Module, of: str, folders: Sequence[str]) -> None:
    argv = [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", of]
    done = subprocess.run(argv, cwd=module.pins, env=_environment(module), capture_output=True, text=True, check=True)
    for folder in folders:
        shutil.copytree(Path(done.stdout.strip()) / folder, module.manifests_folder(), dirs_exist_ok=True)
