"""What ranks do in the tests of test_ranks: small trainings, interrupted here and there."""

from __future__ import annotations

import gc
import hashlib
import io
import logging
import os
import random
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import perdure
from perdure import console
from perdure.checkpoint.image_file import Image
from perdure.errors import PeerLost, UserError
from perdure.group import heartbeat, places
from perdure.group.agreement import Agreement, CheckpointCall, Votes
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from perdure.wire import Env
from perdure.wire.channel import ask_for_save

SAMPLES = 102
DRAWN_ALIKE = 7
"""The seed of what all ranks draw alike."""


@contextmanager
def joined(root: str, **options: Any) -> Iterator[Session]:
    session = Session.from_env(root, **options)
    try:
        with session:
            yield session
    finally:
        session.close()


def weights(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def buffers(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(buffer.numpy().tobytes() for buffer in model.buffers())).hexdigest()


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(SAMPLES, 8, generator=generator)
    return TensorDataset(images, torch.randint(0, 3, (SAMPLES,), generator=generator))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def train(
    root: str,
    *,
    epochs: int = 4,
    batch: int = 16,
    deterministic: bool = False,
    terminate: tuple[int, int] | None = None,
    fault: tuple[int, int] | None = None,
    resume_from: dict[str, Any] | None = None,
    asked: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """Trains to the end, or until rank terminate[0] gets SIGTERM right before it reports its step terminate[1].

    For each (r, s) of `asked` rank r gets a request for one and the same save right before it reports its step s.
    """
    with joined(root, deterministic=deterministic, resume_from=resume_from) as session:
        net = network()
        torch.manual_seed(session.rank)  # dropout of its own on every rank
        random.seed(DRAWN_ALIKE)
        drawn: list[tuple[int, float]] = []
        model = session.wrap(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [8, 20], 0.1)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.loader(dataset(), batch)
        begun = None
        try:
            for _ in session.epochs(epochs):
                begun = session.steps_done if begun is None else begun
                for inputs, labels in batches:
                    if fault and list(fault) == [session.rank, session.steps_done + 1]:
                        raise ValueError("sample 17 has no label")
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(model(inputs), labels)).backward()
                    optimizer.step()
                    if terminate and list(terminate) == [session.rank, session.steps_done + 1]:
                        os.kill(os.getpid(), signal.SIGTERM)
                    if [session.rank, session.steps_done + 1] in asked:
                        ask_for_save(Path(os.environ[Env.REQUEST_FILE]), "1 1")
                    drawn.append((session.steps_done, random.random()))  # noqa: S311
                    session.step()
                    scheduler.step()
                evaluate(session, net)
        except Exit:
            return {"left": session.steps_done, "begun": begun, "drawn": drawn}
        return {
            "begun": begun,
            "steps": session.steps_done,
            "weights": weights(net),
            "buffers": buffers(net),
            "rate": optimizer.param_groups[0]["lr"],
            "random": torch.rand(1).item(),
            "drawn": drawn,
        }


def asked_for_a_save(root: str, *, asked: Sequence[Sequence[int]]) -> dict[str, Any]:
    """As `train`, and ranks are asked for a save."""
    os.environ[Env.REQUEST_FILE] = f"{root}-request-{os.environ['RANK']}.json"
    try:
        return train(root, asked=asked)
    finally:
        del os.environ[Env.REQUEST_FILE]


class Fragile:
    """What its rank dies of, when it is saved after step `at`."""

    def __init__(self, session: Session, *, at: int | None) -> None:
        self._session, self._at = session, at

    def state_dict(self) -> dict[str, Any]:
        if self._session.steps_done == self._at:
            raise OSError("no memory is left")
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        pass


def lost_in_save(root: str, *, epochs: int, leaves: bool = False) -> dict[str, Any]:
    """Rank 1 dies in the save at the end of the first epoch: what image rank 0 leaves."""
    image = Path(root) / f"image-{os.environ['RANK']}"
    image.parent.mkdir(exist_ok=True)
    image.touch()
    os.environ[Env.IMAGE] = str(image)
    try:
        with joined(root) as session:
            net = network()
            model = session.wrap(net)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            fragile = Fragile(session, at=2 if session.rank else None)
            session.register(model=model, optimizer=optimizer, fragile=fragile)
            for _ in session.epochs(epochs):
                for inputs, labels in session.loader(dataset(), 51):
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(model(inputs), labels)).backward()
                    optimizer.step()
                    session.step()
                if leaves:
                    break
            next(session.epochs(1))  # errors of a loop that was left are reported here
    except (PeerLost, OSError) as error:
        found = Image(image).label.position if image.stat().st_size else None
        return {"raised": type(error).__name__, "left": [found.step, found.epoch] if found else None}
    finally:
        del os.environ[Env.IMAGE]
    return {}


def wraps_unlike(root: str, *, how: str) -> None:
    """Rank 1 makes another model than rank 0, and both train one step."""
    with joined(root) as session:
        other = session.rank == 1
        conv, linear = nn.Conv2d(2, 4, 3), nn.Linear(4, 5 if other and how == "wider" else 3)
        if other and how == "channels last":
            conv.to(memory_format=torch.channels_last)
        if other and how == "turned":
            linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
        if other and how == "shorter":
            linear.register_parameter("bias", None)
        model = session.wrap(nn.Sequential(conv, nn.Flatten(), linear))
        model(torch.zeros(1, 2, 3, 3)).sum().backward()


def cannot_wrap(root: str) -> bool:
    """A model that no rank can wrap is refused, and the script drops it. Whether it is still there."""
    with joined(root) as session:
        model = nn.Linear(session.rank + 1, 1)
        dropped = weakref.ref(model)
        with suppress(UserError):
            session.wrap(model)
        del model
        gc.collect()
        return dropped() is not None


def thaw(root: str) -> dict[str, Any]:
    """Trains the last layer alone, then both, then the first alone, on this rank's share."""
    seen = []
    with joined(root) as session:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        net[0].requires_grad_(requires_grad=False)
        model = session.wrap(net)
        session.register(model=model, optimizer=(optimizer := torch.optim.SGD(model.parameters(), lr=0.1)))
        for epoch in session.epochs(3):
            net[0].requires_grad_(epoch >= 1)
            net[2].requires_grad_(epoch < 2)
            for inputs, labels in session.loader(dataset(), 51):
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                optimizer.step()
                session.step()
            seen.append([weights(net[0]), weights(net[2])])
    return {"layers": seen}


def thaws_in_own_ddp(root: str, *, once: bool) -> list[Any]:
    """The same with a DistributedDataParallel of the script's own, made again: `once`, or whenever it has to be."""
    seen = []
    with joined(root) as session:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        net[0].requires_grad_(requires_grad=False)
        model, thawed = nn.parallel.DistributedDataParallel(net), False
        session.register(model=net, optimizer=(optimizer := torch.optim.SGD(net.parameters(), lr=0.1)))
        with suppress(Exit):
            for epoch in session.epochs(4):
                if epoch == 1 or (epoch > 1 and not thawed and not once):
                    net[0].requires_grad_(requires_grad=True)
                    model, thawed = nn.parallel.DistributedDataParallel(net), True
                for inputs, labels in session.loader(dataset(), 51):
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(model(inputs), labels)).backward()
                    optimizer.step()
                    seen.append(weights(net))
                    session.step()
    return seen


def life(root: str, *, ask: int | None = None, leave: int | None = None) -> dict[str, Any]:
    """The hooks' arguments; rank `ask` alone wants to stop in the second epoch, all leave after step `leave`."""
    told: list[str] = []
    made: list[Any] = []
    os.environ["PERDURE_MEMBER"] = f"member-{os.environ['RANK']}"
    os.environ["PERDURE_NODE"] = f"node-{os.environ['RANK']}"
    with joined(root) as session:
        del os.environ["PERDURE_MEMBER"], os.environ["PERDURE_NODE"]
        net = network()
        model = session.wrap(net)
        session.register(model=model, optimizer=torch.optim.SGD(model.parameters()))
        for name in ("init", "resumed", "ranks", "collect", "exit"):
            session.on(name, lambda *_, name=name: told.append(name))
        session.on("committed", lambda commit: made.append(asdict(commit)))
        session.state["rank"] = session.rank
        try:
            for epoch in session.epochs(9):
                if epoch == 1 and session.rank == ask:
                    session.stop("plateau")
                for inputs, labels in session.loader(dataset(), 51):
                    session.weighted(cross_entropy(model(inputs), labels)).backward()
                    session.step()
                    if leave == session.steps_done:  # not before: a process without a step ends at once
                        os.kill(os.getpid(), signal.SIGTERM)
        except Exit:
            return {"told": told, "steps": session.steps_done, "made": made}
        session.result = {"of": session.rank}
    found = {"told": told, "steps": session.steps_done, "rank": session.state["rank"], "made": made}
    return found | {"result": session.result}


def evaluate(session: Session, net: nn.Module) -> None:
    """Draws random numbers, and is a place to leave."""
    net.eval()
    for inputs, _ in DataLoader(dataset(), 51, shuffle=True):
        net(inputs)
        perdure.poll(session)
    net.train()


def stopping(root: str, *, write: tuple[int, int] | None = None) -> dict[str, Any]:
    """Asks should_stop() in its loop; rank write[0] alone finds a file that asks, from its step write[1] on."""
    file = Path(root) / f"exit-{os.environ['RANK']}.json"
    with joined(root, exit_file=file) as session:
        net = network()
        model = session.wrap(net)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        for _ in session.epochs(2):
            for inputs, labels in session.loader(dataset(), 16):
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                optimizer.step()
                if write and list(write) == [session.rank, session.steps_done + 1]:
                    file.write_text('{"GracefulExit": true}')
                session.step()
                scheduler.step()
                if perdure.should_stop(session):
                    break
            if perdure.should_stop(session):
                break
        file.unlink(missing_ok=True)
        left = perdure.should_stop(session)
        return {"left": left, "steps": session.steps_done, "weights": weights(net), "rate": scheduler.get_last_lr()}


def uneven(root: str) -> None:
    """The ranks take the same two loaders in another order each, and are to leave after the third step."""
    with joined(root) as session:
        session.register(model=nn.Linear(1, 1))
        loaders = [session.loader(dataset(), 16, name=name) for name in ("one", "two")]
        for _ in session.epochs(1):
            for batches in loaders if session.rank == 0 else reversed(loaders):
                for _ in batches:
                    if session.steps_done == 2:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()


def parted(root: str) -> None:
    """Asked to leave with an epoch's last step, rank 1 evaluates behind it, and rank 0 does not."""
    with joined(root) as session:
        session.register(model=nn.Linear(1, 1))
        train, valid = session.loader(dataset(), 34), session.loader(dataset(), 34, name="valid", train=False)
        for _ in session.epochs(2):
            for _ in train:
                if session.steps_done == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
            for _ in valid if session.rank else ():
                pass


class Places(logging.Handler):
    """Collects what is said of the ranks' places; calls `act` once when all of `parts` are said."""

    def __init__(self, act: Callable[[], Any], *parts: str) -> None:
        super().__init__()
        self.said = ""
        self._act, self._parts = act, parts

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        if not self.said and all(part in words for part in self._parts):
            self.said = words
            self._act()


def strayed(root: str, parts: list[str]) -> dict[str, str]:
    """Rank 0 waits in a collective of the script's own, while rank 1 evaluates. Once that is said, rank 1's thread
    meets rank 0 there, so that both come to the error that ends them."""
    beats, still, looks = heartbeat.BEAT_SECONDS, places.STILL_SECONDS, places.LOOK_SECONDS
    heartbeat.BEAT_SECONDS, places.STILL_SECONDS, places.LOOK_SECONDS = 0.1, 1.0, 0.5  # type: ignore[misc]
    rank, error = int(os.environ["RANK"]), ""
    handler = Places(dist.barrier if rank else lambda: None, *parts)
    console.LOGGER.addHandler(handler)
    try:
        with joined(root, timeout_seconds=60) as session:
            session.register(model=nn.Linear(1, 1))
            train, valid = session.loader(dataset(), 34), session.loader(dataset(), 34, name="valid", train=False)
            for _ in session.epochs(1):
                for _ in train:
                    if session.steps_done == 1 and rank == 0:
                        dist.barrier()
                    for _ in valid if session.steps_done == 1 and rank else ():
                        pass
                    session.step()
    except UserError as apart:
        error = str(apart)
    finally:
        console.LOGGER.removeHandler(handler)
        heartbeat.BEAT_SECONDS, places.STILL_SECONDS, places.LOOK_SECONDS = beats, still, looks  # type: ignore[misc]
    return {"said": handler.said, "error": error}


def pins(root: str, *, unlike: bool = False) -> list[int]:
    """Every third step is saved under a name; `unlike`: by rank 0 alone, while rank 1 saves without one."""
    with joined(root) as session:
        torch.manual_seed(0)
        session.register(model=nn.Linear(1, 1))
        for _ in session.epochs(2):
            for i in session.steps(7):
                session.step()
                if i % 3 == 2:
                    session.save(pin=None if unlike and session.rank else "third")
    return [commit.step for commit in perdure.history(root) if "third" in commit.pins]


def weighted_gradient(root: str) -> list[float]:
    """The gradient DDP makes of a global batch of 5 on 4 ranks with weights; then that of one process."""
    with joined(root) as session:
        torch.manual_seed(0)
        net = nn.Linear(8, 3)
        whole = nn.Linear(8, 3)
        whole.load_state_dict(net.state_dict())
        model = session.wrap(net)
        session.register(model=model)
        samples = TensorDataset(*dataset()[:5])
        for _ in session.epochs(1):
            for inputs, labels in session.loader(samples, 5):
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                session.step()
        cross_entropy(whole(samples.tensors[0]), samples.tensors[1]).backward()
        pairs = zip(gradients(net), gradients(whole), strict=True)
        return [(one - other).abs().max().item() for one, other in pairs]


def two_loaders(root: str, second: int) -> str:
    """The output of steps with a batch of each of two loaders, the other of `second` samples."""
    with redirect_stderr(io.StringIO()) as printed, joined(root) as session:
        model = session.wrap(nn.Linear(8, 3))
        session.register(model=model)
        one = session.loader(TensorDataset(*dataset()[:10]), 4, name="one")
        two = session.loader(TensorDataset(*dataset()[:second]), 4, name="two")
        for _ in session.epochs(2):
            for (inputs, labels), (more, others) in zip(one, two, strict=True):
                loss = session.weighted(cross_entropy(model(inputs), labels))
                (loss + session.weighted(cross_entropy(model(more), others))).backward()
                session.step()
    return printed.getvalue()


def leaves_out(root: str, *, views: bool, left: str) -> str:
    """The output if every third batch goes without a step of the optimizer.

    `views`: gradients are views of DistributedDataParallel's buckets. `left`: what becomes of those that nobody used:
    they are kept, zeroed or removed.
    """
    with redirect_stderr(io.StringIO()) as printed, joined(root) as session:
        torch.manual_seed(0)
        model = session.wrap(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), gradient_as_bucket_view=views)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        session.register(model=model, optimizer=optimizer)
        for _ in session.epochs(1):
            for number, (inputs, labels) in enumerate(session.loader(dataset(), 8)):
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                if number % 3:
                    optimizer.step()
                session.step()
                if number % 3 or left != "kept":
                    optimizer.zero_grad(set_to_none=left == "removed")
    return printed.getvalue()


IGNORED = -100
TOKENS = 7


def sequences() -> TensorDataset:
    """Of which some tokens are ignored: of sample 0 all but one, of sample 1 all, of sample 2 none, ..."""
    generator = torch.Generator().manual_seed(6)
    labels = torch.randint(0, 3, (10, TOKENS), generator=generator)
    for sample, kept in enumerate((1, 0, 7, 2, 0, 5, 3, 0, 0, 0)):
        labels[sample, kept:] = IGNORED
    return TensorDataset(torch.randn(10, TOKENS, 8, generator=generator), labels)


def token_gradients(root: str, parts: int) -> list[float]:
    """How far the ranks' gradients of ten sequences, in `parts` accumulated batches, are from one process's."""
    with joined(root) as session:
        torch.manual_seed(0)
        net, whole = nn.Linear(8, 3), nn.Linear(8, 3)
        whole.load_state_dict(net.state_dict())
        model = session.wrap(net)
        session.register(model=model)
        for _ in session.epochs(1):
            batches = list(session.loader(sequences(), 10 // parts, shuffle=False))
            counted = [(labels != IGNORED).sum() for _, labels in batches]
            for (inputs, labels), tokens in zip(batches, counted, strict=True):
                session.weighted(token_loss(model, inputs, labels), tokens, of=sum(counted)).backward()
            session.step()
        token_loss(whole, *sequences().tensors).backward()
        pairs = zip(gradients(net), gradients(whole), strict=True)
        return [(one - other).abs().max().item() for one, other in pairs]


def token_loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(inputs).transpose(1, 2), labels, ignore_index=IGNORED)


def miscounted(root: str) -> None:
    """One rank gives more items than it says to have."""
    with joined(root) as session:
        session.register(model=nn.Linear(1, 1))
        perdure.restore(session)
        session.weighted(torch.ones(()), 2 + session.rank, of=2)


def exchange(root: str) -> dict[str, Any]:
    """What ranks tell each other; at the end rank 0 alone calls one step too late."""
    with joined(root) as session:
        own = session.rank + 1
        found: dict[str, Any] = {
            "gathered": perdure.gather(session, {"rank": session.rank, "text": "é"}),
            "sum": perdure.all_reduce(session, own),
            "mean": perdure.all_reduce(session, [own, 0.5], "mean"),
            "most": perdure.all_reduce(session, {"a": own, "b": -own}, "max"),
            "tensor": perdure.all_reduce(session, torch.tensor([[own, 0.25]])).tolist(),
        }
        net = network()
        session.register(net=net, optimizer=torch.optim.SGD(net.parameters()))
        for _ in session.epochs(1):
            for _ in session.loader(dataset(), 51):
                if session.rank == 1 and session.steps_done == 1:
                    found["refused"] = refused(lambda: perdure.gather(session, 1))
                session.step()
                if session.rank == 0 and session.steps_done == 2:
                    found["refused"] = refused(lambda: perdure.gather(session, 1))
        found["tensors"] = refused(lambda: perdure.gather(session, torch.ones(2) if session.rank else 1))
    return found


def refused(act: Callable[[], Any]) -> str:
    try:
        act()
    except UserError as error:
        return str(error)
    return "nothing"


def gradients(net: nn.Module) -> list[torch.Tensor]:
    """Of each parameter: every one has been used."""
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def polls(root: str, polling: list[int]) -> None:
    """Some ranks poll once more than the others."""
    with joined(root) as session:
        session.register(model=nn.Linear(1, 1))
        for _ in session.epochs(1):
            for _ in session.loader(dataset(), 16):
                if session.rank in polling and session.steps_done == 2:
                    perdure.poll(session)
                session.step()


def agree(requests: list[tuple[int, int]], interval: float) -> dict[str, list[int]]:
    """Checks with skew in a group of its own; rank r is asked before its check number s, for each (r, s) alone.

    Returns for each request where this rank stopped.
    """
    rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    stops = []
    for who, when in requests:
        agreement = Agreement(dist.group.WORLD, interval=interval)
        for step in range(1, 40):
            time.sleep(0.002 * ((step * (rank + 1)) % 4))  # the skew that is under test
            asked = rank == who and step >= when
            if agreement.check(step, CheckpointCall.STEP, Votes(exit=asked)).exit:
                stops.append(step)
                break
    dist.destroy_process_group()
    return {"stops": stops}


def spawned(root: str) -> list[dict[str, Any]]:
    """Two trainings, one after the other, in a process group that alone knows the ranks: nothing is in the environment.

    After each, what the group still does.
    """
    place = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    init, rank, world = f"tcp://127.0.0.1:{place['MASTER_PORT']}", int(place["RANK"]), int(place["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world)
    try:
        return [trained_in_group(f"{root}/{part}") for part in range(2)]
    finally:
        dist.destroy_process_group()
        os.environ.update(place)


def trained_in_group(root: str) -> dict[str, Any]:
    group = dist.group.WORLD
    with joined(root) as session:
        net = network()
        model = session.wrap(net)
        session.register(net=net)
        for _ in session.epochs(1):
            for images, labels in session.loader(dataset(), 16):
                session.weighted(cross_entropy(model(images), labels)).backward()
                session.step()
    total = torch.tensor(2 ** dist.get_rank())
    dist.all_reduce(total)
    found = {
        "rank": session.rank,
        "world": session.world,
        "steps": session.steps_done,
        "kept": group is dist.group.WORLD,
    }
    return found | {
        "gradients": [value for one in gradients(net) for value in one.flatten().tolist()],
        "total": total.item(),
    }


def without_a_server(root: str) -> None:
    """The ranks have found each other through a file."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    Path(root).mkdir(exist_ok=True)
    dist.init_process_group("gloo", init_method=f"file://{root}/ranks", rank=rank, world_size=world)
    dist.barrier()  # else a rank may leave before its peer has met it
    try:
        with joined(root):
            pass
    finally:
        dist.destroy_process_group()


def twice(root: str) -> None:
    """A session begins while another of this process goes on."""
    with joined(root), joined(root):
        pass


def seconds(root: str) -> None:
    """A checkpoint falls due by rank 0's clock between steps 2 and 3."""
    with joined(root) as session:
        session.register(model=nn.Linear(1, 1))
        for _ in session.epochs(1):
            for _ in session.loader(dataset(), 16):
                if session.steps_done == 2:
                    session._core.run.schedule.saved_at -= 3601 * (session.rank == 0)
                session.step()


def exhausted(root: str) -> bool:
    """One rank says so in a step that save() comes after."""
    with joined(root) as session:
        session.register(model=network())
        for _ in session.epochs(1):
            for _ in session.steps(1):
                session.step(exhausted=session.rank == 1)
                session.save()
        return perdure.progress(session).exhausted


def subgroup(root: str) -> list[float]:
    """The gradients that a group of ranks 0 and 1 agrees on, summed in rank order; rank 2 has its own."""
    with joined(root, deterministic=True) as session:
        pair = dist.new_group([0, 1])
        net = nn.Linear(1, 1, bias=False)
        model = session.wrap(net, process_group=pair) if session.rank < 2 else net
        (model(torch.ones(1, 1)) * (session.rank + 1)).sum().backward()
        return [gradient.item() for gradient in gradients(net)]


def evaluates(root: str, *, terminate: tuple[int, str, int] | None = None) -> dict[str, Any]:
    """Trains and evaluates in two passes an epoch, and once more behind the last; of all that was handed out to be
    evaluated there are the ids, by epoch and pass. Rank terminate[0] gets SIGTERM in that pass's batch of that number.
    """
    seen: list[tuple[str, list[int]]] = []
    with joined(root) as session:
        net = network()
        model = session.wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        numbers = TensorDataset(torch.arange(SAMPLES))
        valid = session.loader(numbers, 16, name="valid", train=False, shuffle=True)

        def walk(name: str) -> None:
            for number, (ids,) in enumerate(valid):
                seen.append((name, ids.tolist()))
                if terminate and list(terminate) == [session.rank, name, number]:
                    os.kill(os.getpid(), signal.SIGTERM)

        try:
            for epoch in session.epochs(2):
                for inputs, labels in session.loader(dataset(), 48):
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(model(inputs), labels)).backward()
                    optimizer.step()
                    session.step()
                for name in ("a", "b"):
                    walk(f"{epoch}{name}")
            walk("end")
        except Exit:
            return {"left": session.steps_done, "seen": seen}
        return {"steps": session.steps_done, "seen": seen}


def scored(root: str, *, way: str) -> str:
    """Trains the wrapped model, evaluates in the middle of both epochs in this way, and prints the messages it got."""
    said = io.StringIO()
    with redirect_stderr(said), joined(root) as session:
        net = network()
        if way == "synchronized":
            net = Between(net)
        model = session.wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        teacher = session.wrap(network())
        session.register(teacher=teacher)
        valid = session.loader(dataset(), 34, name="valid", train=False)
        for _ in session.epochs(2):
            for inputs, labels in session.loader(dataset(), 34):
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                optimizer.step()
                session.step()
                if session.steps_done % 3 == 1 and way != "nothing":
                    polls = way in ("polling", "in turn")
                    scored_in(model if way == "wrapped" else net, session, None if polls else valid)
                    if way == "in turn":
                        scored_in(teacher, session, None)
    return said.getvalue()


def scored_in(called: nn.Module, session: Session, valid: Any) -> None:
    called.eval()
    for inputs, _ in valid or DataLoader(dataset(), 51):
        called(inputs)
        if valid is None:
            perdure.poll(session)
    called.train()


def called(root: str, *, way: str) -> str:
    """Trains the wrapped model, calls the network in eval mode within each step in this way, and prints the messages
    it got."""
    said = io.StringIO()
    with redirect_stderr(said), joined(root) as session:
        net = network()
        model = session.wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        session.register(model=model, optimizer=optimizer)
        valid = session.loader(dataset(), 34, name="valid", train=False)
        for _ in session.epochs(2):
            for inputs, labels in session.loader(dataset(), 34):
                net.eval()
                if way == "scored":
                    scored_in(net, session, valid)
                else:
                    net(inputs)
                net.train()
                optimizer.zero_grad()
                session.weighted(cross_entropy(model(inputs), labels)).backward()
                optimizer.step()
                session.step()
    return said.getvalue()


class Between(nn.Module):
    """The ranks' statistics are made equal behind each forward pass, as SyncBatchNorm has them on accelerators."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: torch.Tensor) -> Any:
        found = self.net(inputs)
        for buffer in self.net.buffers():
            dist.broadcast(buffer, 0)
        return found


def summing(root: str, *, leave: Sequence[int] = ()) -> dict[str, Any]:
    """What a script reads of its accumulators; rank leave[0] gets SIGTERM in step leave[1]."""
    read: dict[str, Any] = {}
    with joined(root) as session:
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
        model = session.wrap(net)
        session.register(model=model, optimizer=torch.optim.SGD(model.parameters()))
        train, valid = (
            session.loader(TensorDataset(torch.ones(size, 4), torch.arange(size)), 6, name=name)
            for name, size in (("train", 50), ("valid", 17))
        )
        scores, every = perdure.accumulator(session, "scores"), perdure.accumulator(session, "every")
        try:
            for epoch in session.epochs(3):
                for inputs, ids in train:
                    session.weighted(cross_entropy(model(inputs), ids % 3)).backward()
                    for sample in ids.tolist():
                        scores.add(loss=0.1 * sample, n=1)
                        every[f"epoch {epoch}"] += sample
                    if [session.rank, session.steps_done + 1] == [*leave]:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                read[f"trained {epoch}"] = scores.sum()
                for _, ids in valid:
                    for sample in ids.tolist():
                        scores.add(loss=0.1 * sample, n=1)
                    perdure.poll(session)
                read[f"evaluated {epoch}"] = scores.sum()
            read["every"] = every.sum()
        except Exit:
            pass
    return read


def reads(root: str, *, terminate: tuple[int, int] | None = None) -> dict[str, Any]:
    """Trains on a reader that goes on over epochs until all is read; the ids that this rank has read, by epoch. Rank
    terminate[0] gets SIGTERM in the step of that number.
    """
    seen: list[tuple[int, list[int]]] = []
    with joined(root) as session:
        net = nn.Linear(1, 1)
        model = session.wrap(net)
        session.register(model=model)
        numbers = TensorDataset(torch.arange(SAMPLES))
        reader = session.loader(numbers, 8, per_epoch=30, rewind=False)
        try:
            for epoch in session.epochs(stop=[reader.exhausted]):
                for (ids,) in reader:
                    seen.append((epoch, ids.tolist()))
                    if terminate and list(terminate) == [session.rank, session.steps_done + 1]:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
        except Exit:
            return {"left": session.steps_done, "seen": seen}
        return {"steps": session.steps_done, "seen": seen}


class Seen:
    """Which samples this rank has seen."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"ids": torch.tensor(self.ids, dtype=torch.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ids = state["ids"].tolist()


def dealt(states: list[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """All that was seen, in the order of the old ranks, dealt out to the new ones."""
    return {"ids": torch.cat([state["ids"] for state in states])[rank::world]}


def failing(states: list[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    if rank == world - 1:
        raise ValueError(f"{len(states)} are too many")
    return states[0]


def unfit(states: list[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """What the last rank's object cannot load."""
    return {"others": 1} if rank == world - 1 else states[0]


def killed_in_save(step: int) -> None:
    """This process is killed in the save of that step, when its tensors are written and its index is not."""

    def look(event: str, arguments: Sequence[Any]) -> None:
        if event == "os.rename" and f"/{step}-" in str(arguments[1]) and "/index-" in str(arguments[1]):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def remembers(
    root: str, *, leave: Sequence[int] = (), killed: Sequence[int] = (), merge: str = "dealt"
) -> dict[str, Any]:
    """What each rank has seen, which is its own; rank leave[0] gets SIGTERM in step leave[1], and rank killed[0] is
    killed in the save of step killed[1]."""
    began: list[int] | None = None
    with joined(root) as session:
        if [session.rank] == [*killed[:1]]:
            killed_in_save(killed[1])
        torch.manual_seed(0)
        net, seen = nn.Linear(4, 3), Seen()
        model = session.wrap(net)
        merges = {"seen": globals()[merge]} if merge else None
        session.register(model=model, optimizer=torch.optim.SGD(model.parameters()), seen=seen, merge=merges)
        train = session.loader(TensorDataset(torch.ones(50, 4), torch.arange(50)), 6)
        with suppress(Exit):
            for _ in session.epochs(2):
                for inputs, ids in train:
                    began = [*seen.ids] if began is None else began
                    session.weighted(cross_entropy(model(inputs), ids % 3)).backward()
                    seen.ids += ids.tolist()
                    if [session.rank, session.steps_done + 1] == [*leave]:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
    return {"began": began, "seen": seen.ids}


class Backtracking(torch.optim.Optimizer):
    """As many are written outside of torch: the step is halved until the loss falls enough."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 8.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        first = with_gradients(closure)()
        owned = [(one, one.clone(), one.grad.clone()) for one in self.param_groups[0]["params"]]
        slope, length = sum(float(grad.square().sum()) for _, _, grad in owned), self.param_groups[0]["lr"]
        while length > MOST_HALVED:
            for one, was, grad in owned:
                one.copy_(was - length * grad)
            if with_gradients(closure)().item() <= first.item() - 0.5 * length * slope:
                break
            length /= 2
        return first


class Uneven(torch.optim.SGD):
    """It decides by a value of its own rank."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)

    def step(self, closure: Any = None) -> Any:
        for _ in range(dist.get_rank()):
            closure()
        return super().step(closure)


MOST_HALVED = 1e-3
with_gradients = torch.enable_grad()
LINE_SEARCHES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, max_iter=6, line_search_fn="strong_wolfe"),
    "lbfgs-without-search": lambda parameters: torch.optim.LBFGS(parameters, lr=0.3, max_iter=6, tolerance_change=1e-2),
    "backtracking": Backtracking,
}
"""Each ends by the loss."""


def searched(optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]) -> tuple[float, int]:
    """One step: the loss that it returned, and how often it has called its closure."""
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss.detach()

    return float(optimizer.step(closure)), calls  # type: ignore[arg-type]


def search_for_an_input() -> None:
    own = torch.ones(2, requires_grad=True)
    searched(torch.optim.LBFGS([own], max_iter=3), lambda: (own - 2).square().sum())


def line_search(root: str, *, kind: str, wrapped: bool) -> Any:
    """Steps over the whole dataset; in between rank 0 searches for an input of its own."""
    torch.manual_seed(0)
    net = nn.Linear(8, 3).double()
    with joined(root) as session:
        model = session.wrap(net) if wrapped else net
        optimizer = {**LINE_SEARCHES, "uneven": Uneven}[kind](net.parameters())
        session.register(model=model, optimizer=optimizer)
        found = []
        for _ in session.epochs(3):
            for inputs, labels in session.loader(dataset(), SAMPLES):

                def loss(inputs: torch.Tensor = inputs, labels: torch.Tensor = labels) -> torch.Tensor:
                    return session.weighted(cross_entropy(model(inputs.double()), labels))

                found.append(searched(optimizer, loss))
                if session.rank == 0:
                    search_for_an_input()
                session.step()
        return {"found": found, "weights": [one.flatten().tolist() for one in net.parameters()]}


def line_search_alone(kind: str) -> Any:
    """The same by torch alone."""
    torch.manual_seed(0)
    net = nn.Linear(8, 3).double()
    optimizer = LINE_SEARCHES[kind](net.parameters())
    inputs, labels = dataset().tensors
    found = [searched(optimizer, lambda: cross_entropy(net(inputs.double()), labels)) for _ in range(3)]
    return {"found": found, "weights": [one.flatten().tolist() for one in net.parameters()]}
