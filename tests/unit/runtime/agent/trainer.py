"""Trainers without torch for the agent's tests: trainer.py BEHAVIOUR. What they print is what a test waits for."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.wire import CommitRef, Env, ExitKind
from perdure.wire.channel import (
    Attached,
    Exiting,
    SessionOpened,
    StepDone,
    TookOver,
    TrainerReport,
    Voting,
    read_offer,
    read_request,
    read_save_request,
    vote_acknowledged,
    write_report,
    write_unwound,
)

RUN = int(os.environ[Env.RUN])
REQUESTS = {signal.SIGTERM}
kept: list[Any] = []
"""What a script leaves to the interpreter's end."""
FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]


def report(*reports: TrainerReport) -> None:
    for one in reports:
        write_report(int(os.environ[Env.REPORT_FD]), one)


def tell(**what: object) -> None:
    os.write(1, f"{json.dumps(what)}\n".encode())  # print() may write a line and its end apart: others write here, too


def train(step: int = 5) -> None:
    report(Attached(os.getpid()), SessionOpened(RUN, CommitRef(3, 4)), StepDone(step))
    tell(training=RUN, rank=int(os.environ["RANK"]))


def save() -> None:
    signal.sigwait(REQUESTS)
    request = read_request(Path(os.environ[Env.REQUEST_FILE]))
    if request is None:
        raise RuntimeError("SIGTERM without a request")
    tell(asked=RUN, cause=request.cause, left=request.deadline - time.monotonic())
    report(Exiting(ExitKind.CHECKPOINTED, 6, CommitRef(4, 6), RUN, {"commit": 0.25}))


def drained() -> None:
    train()
    save()


def makes_way() -> None:
    drained()
    write_unwound(int(os.environ[Env.REPORT_FD]))


class Slow:
    """Blocks the interpreter's shutdown until the pipe is opened. Nothing of a module is left by then."""

    def __init__(self, pipe: str) -> None:
        self._pipe = pipe

    def __del__(self, opened: Callable[[str, int], int] = os.open, flags: int = os.O_RDONLY) -> None:
        opened(self._pipe, flags)


def trains_in_shards() -> None:
    """One step by FSDP2. torch's cache of placements then keeps the group, and the group its listening socket, after
    the group was destroyed."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    net = torch.nn.Linear(4, 2)
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()


def ends_slowly() -> None:
    """`ends_slowly PIPE [listens | writes | locks | shards]`: with something that another process could want."""
    tell(pid=os.getpid())
    if "shards" in sys.argv:
        trains_in_shards()
    if "listens" in sys.argv:
        kept.append(server := socket.create_server(("127.0.0.1", 0)))
        tell(server=server.getsockname()[1])
    if {"writes", "locks"} & set(sys.argv):
        kept.append(Path(f"{sys.argv[2]}.{RUN}").open("w" if "writes" in sys.argv else "x+"))  # noqa: SIM115 - it is left open
    if "locks" in sys.argv:
        fcntl.flock(kept[-1], fcntl.LOCK_EX)
        Path(f"{sys.argv[2]}.{RUN}").unlink()
    kept.append(Slow(sys.argv[2]))  # a list frees its last item first
    train()
    save()


def fails_where_another_ends() -> None:
    if RUN == 1:
        ends_slowly()
    else:
        raising()


def worker_left_behind() -> None:
    """Like a DataLoader worker that has escaped even from the session."""
    worker = subprocess.Popen(FOREVER, start_new_session=True)
    tell(worker=worker.pid)
    drained()
    worker.returncode = 0


def orphan() -> None:
    """Starts a process whose parent ends first."""
    script = f"import subprocess; print(subprocess.Popen({[sys.executable, '-c', '']!r}).pid)"
    pid = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    tell(orphan=int(pid))
    drained()


def goes_over() -> None:
    """Takes no step by itself: the time between the offer and the word belongs to the agent."""
    report(Attached(os.getpid(), live=True), SessionOpened(RUN), StepDone(5))
    tell(training=RUN)
    path = Path(os.environ[Env.HANDOVER_FILE])
    while (offer := read_offer(path)) is None:
        time.sleep(0.01)
    tell(offered=offer.run)
    report(Voting(RUN, offer.run))
    while not vote_acknowledged(path, offer.run):
        time.sleep(0.01)
    tell(acknowledged=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    tell(held=not signal.sigpending() & REQUESTS)
    report(TookOver(offer.run, 0, 2, 6))
    save()


def raising() -> None:
    train()
    raise ValueError("boom")


def killed() -> None:
    train()
    os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory() -> None:
    """The kernel counts, then kills; what torch says on the way is no reason."""
    train()
    memory = Path(sys.argv[2])
    memory.joinpath("memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    os.write(2, b"[W1121 13:09:09.432 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed\nframe #0: c10::Error\n")
    os.kill(os.getpid(), signal.SIGKILL)


def resumed() -> None:
    """Dies before its first step."""
    report(Attached(os.getpid()), SessionOpened(RUN), SessionOpened(RUN, CommitRef(3, 72)))
    os.kill(os.getpid(), signal.SIGKILL)


def stubborn() -> None:
    train(20)
    while True:
        signal.sigwait(REQUESTS)


def not_opened() -> None:
    report(Attached(os.getpid()))
    tell(waiting=RUN)
    stubborn_without_words()


def stubborn_without_words() -> None:
    while True:
        signal.sigwait(REQUESTS)


def peer_lost() -> None:
    train()
    report(Exiting(ExitKind.PEER_LOST, 5))
    sys.exit(1)


def completed() -> None:
    train()
    report(Exiting(ExitKind.COMPLETED, 10, CommitRef(5, 10)))


def saves_when_asked() -> None:
    """Trains on until it was asked for so many saves."""
    train()
    known = ""
    for _ in range(json.loads(sys.argv[2])):
        while (word := read_save_request(Path(os.environ[Env.REQUEST_FILE]))) == known:
            time.sleep(0.01)
        known = word
        tell(word=word)
    report(Exiting(ExitKind.COMPLETED, 10, CommitRef(5, 10)))


def exporting() -> None:
    """Goes on after its last epoch, until the test lets it end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
    train()
    report(Exiting(ExitKind.COMPLETED, 10, CommitRef(5, 10)))
    tell(exporting=RUN)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    tell(exported=RUN)


def first_rank_raises() -> None:
    train()
    if os.environ["LOCAL_RANK"] == "0":
        raise ValueError("boom of the first")
    stubborn_without_words()


def first_rank_leaves_a_worker() -> None:
    """The first process ends at once, and its worker would live on."""
    if os.environ["LOCAL_RANK"] == "0":
        worker = subprocess.Popen(FOREVER)
        worker.returncode = 0
        tell(worker=worker.pid)
        return
    tell(running=RUN)
    signal.sigwait(REQUESTS)


def flooding() -> None:
    """Reports far more than a pipe holds while its agent stands still."""
    os.kill(os.getppid(), signal.SIGSTOP)
    report(*(StepDone(step) for step in range(5000)))
    tell(flooded=RUN)
    os.kill(os.getppid(), signal.SIGCONT)


def talkative() -> None:
    """Writes far more to stderr than the agent's log pipe and its backlog hold, and fails."""
    train()
    for number in range(50_000):
        os.write(2, f"line {number:>90}\n".encode())
    raise ValueError("boom")


def own_callback() -> None:
    """A script of another framework with an exit callback of its own: it knows a signal and a JSON file."""
    tell(running=RUN)
    signal.sigwait(REQUESTS)
    tell(file=json.loads(Path(os.environ[Env.REQUEST_FILE]).read_text())["GracefulExit"])


def environment() -> None:
    tell(environment=dict(os.environ))


def closed_pipes() -> None:
    """Closes what it shares with the agent, and lives on."""
    train()
    os.close(int(os.environ[Env.REPORT_FD]))
    os.close(2)
    signal.sigwait(REQUESTS)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
    globals()[sys.argv[1]]()
