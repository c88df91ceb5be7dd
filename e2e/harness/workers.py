"""A pytest plugin: one test run over several processes (`pytest -n 5`) with one cluster and one report.

A file's tests stay together, and so do those of tests/api, of tests/cluster and of e2e/scenarios/alone, because they
share a server, a cluster or the operator. The tests in `alone` come first, beside tests that need no cluster. Then the
other scenarios are handed out one by one, the longest first, never to more processes than the cluster has lanes;
scenarios with an autoscaler's nodes are limited further. The other processes take tests without a cluster, because a
scenario waits more than it computes; there, too, the longest come first. The audit of permissions comes after all
scenarios; the cluster goes before it, because kubelets never rest. Without `-n` the order is the same. Loaded
by the repository's conftest.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from e2e.cluster import cleanup
from e2e.harness.shared_run import VARIABLE, SharedRun
from e2e.prepare import Progress
from e2e.prepare.basics import locked

SCENARIOS = "e2e/scenarios/"
AUDIT = f"{SCENARIOS}test_rbac.py"
AUTOSCALED = f"{SCENARIOS}test_autoscaled.py"
LONGEST = (
    f"{SCENARIOS}test_sharded.py",
    f"{SCENARIOS}test_horizontal.py",
    AUTOSCALED,  # not the first: it waits for the tests of the cluster tool
    *(f"{SCENARIOS}test_{name}.py" for name in ("signals", "nodes_gone")),
)
HISTORIES = "tests/simulation/test_histories.py"
RUNTIME = tuple(f"tests/unit/runtime/{name}/" for name in ("live", "adapters", "session", "loop"))
LONG = (
    *(HISTORIES, "tests/handover/", "tests/property/", *RUNTIME, "tests/upstream/", "tests/upgrade/"),
    *("tests/unit/support/", "tests/unit/examples/", "tests/unit/runtime/testing/"),
)
"""Begun at the end, one of them would leave the other processes idle."""
TOGETHER = (f"{SCENARIOS}alone/", "tests/api/", "tests/cluster/")
ORDER = (*TOGETHER, *LONGEST, SCENARIOS, AUDIT, *LONG, "")
STANDARD_ERROR = 2
LANES = 3
"""Scenarios that one cluster carries at once (e2e/scenarios/lanes)."""
BEGUN_HERE = pytest.StashKey[SharedRun]()
FOR_THE_UNIT = pytest.StashKey[contextlib.ExitStack]()


def unit(nodeid: str) -> str:
    """The unit of distribution: a folder, a file, or a single scenario or part of the histories."""
    folder = next((folder for folder in TOGETHER if nodeid.startswith(folder)), None)
    file = nodeid.partition("::")[0]
    single = file == HISTORIES or (file.startswith(SCENARIOS) and file not in (AUDIT, AUTOSCALED))
    return folder or (nodeid if single else file)


def place(nodeid: str) -> int:
    """Smaller comes sooner."""
    if nodeid.startswith(AUDIT):
        return ORDER.index(AUDIT)
    return next(number for number, beginning in enumerate(ORDER) if nodeid.startswith(beginning))


def lanes_of(scope: str) -> int:
    """How many of the cluster's lanes a unit takes; the audit waits for all scenarios."""
    if not scope.startswith(SCENARIOS):
        return 0
    return LANES if scope.startswith((*TOGETHER, AUDIT)) else 1


def chosen(waiting: Iterable[str], others: Collection[Collection[str]]) -> str | None:
    """The first unit that waits for no lane, or None: the other processes, each with its units, have them all.

    A process works on its units one after the other, so its own units are no obstacle.
    """
    free = LANES - sum(max(map(lanes_of, units), default=0) for units in others)
    return next((scope for scope in waiting if lanes_of(scope) <= max(free, 0)), None)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out units in the order of collection, to each process one more than it works on."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        others = [other for other in self.nodes if other is not node and not other.shutting_down]
        scope = chosen(self.workqueue, [self._unfinished(other) for other in others])
        if scope is None and len(others) >= LANES:  # enough are left for what waits for a lane
            node.shutdown()
            return
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """The test in which a process ended, or None if it had none left; the others take the rest of its units.

        xdist's own way hands that test out again, which ends the next process too, and units that have nothing left,
        for which a process waits without end.
        """
        tests: list[tuple[str, str]] = [
            (scope, test) for scope, unit in self.assigned_work.pop(node).items() for test in unit if not unit[test]
        ]
        if not tests:
            return None
        (_, ended_in), *rest = tests
        for scope, test in rest:
            self.workqueue.setdefault(scope, {})[test] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return ended_in

    def _unfinished(self, node: Any) -> list[str]:
        return [scope for scope, tests in self.assigned_work[node].items() if not all(tests.values())]

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:
            return  # it takes the place of one that has ended, and asks by itself once it knows the tests
        # more would wait for a long one here while the other process has nothing to do
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """The order of collection counts, not the number of tests in a unit."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """The first process begins the run; those it starts find it.

    A script's shell makes what it starts in the background ignore Ctrl-C, which tests send to processes of theirs.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if VARIABLE not in os.environ:
        config.stash[BEGUN_HERE] = SharedRun.begin()
    if hasattr(config, "workerinput"):
        os.register_at_fork(after_in_child=partial(_let_go, _pipes()))


def _pipes() -> dict[int, tuple[int, int]]:
    """What this process has open, by file, but its standard streams: before its first test it is xdist's alone."""
    found = {}
    for path in Path("/proc/self/fd").iterdir() if sys.platform == "linux" else ():
        file = int(path.name)
        with contextlib.suppress(OSError):  # the listing's own
            status = os.fstat(file)
            if stat.S_ISFIFO(status.st_mode) and file > STANDARD_ERROR:
                found[file] = status.st_dev, status.st_ino
    return found


def _let_go(pipes: Mapping[int, tuple[int, int]]) -> None:
    """In a process that a test has forked: the first process learns that one has died from the end of its pipe alone.

    A process that this one forks may have something else under the same number.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for file, pipe in pipes.items():
        with contextlib.suppress(OSError):
            status = os.fstat(file)
            if (status.st_dev, status.st_ino) == pipe:
                os.dup2(nothing, file)
    os.close(nothing)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The first process ends the run, after all others, and removes the clusters that are left."""
    run = config.stash.get(BEGUN_HERE, None)
    if run is None:
        return
    remove_clusters(run)
    run.end()


def remove_clusters(run: SharedRun) -> None:
    """No test in the run needs them any more."""
    for cluster in run.clusters():
        with locked(f"cluster-{cluster}", Progress()):
            cleanup.remove(cluster)
            run.forget_cluster(cluster)  # from now on another run may have one of this name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See above."""
    items.sort(key=lambda item: place(item.nodeid))


@pytest.fixture(scope="session")
def for_the_unit(request: pytest.FixtureRequest) -> Iterator[contextlib.ExitStack]:
    """What enters it is left behind the last test of this unit: a cluster costs a process until then, and memory."""
    with contextlib.ExitStack() as stack:
        request.config.stash[FOR_THE_UNIT] = stack
        yield stack


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Behind the fixtures of the test, its file and its unit."""
    result = yield
    if FOR_THE_UNIT in item.config.stash and (nextitem is None or unit(nextitem.nodeid) != unit(item.nodeid)):
        item.config.stash[FOR_THE_UNIT].close()
    return result


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Tests that wait for this one can see that it is over."""
    SharedRun.current().finished(nodeid)
