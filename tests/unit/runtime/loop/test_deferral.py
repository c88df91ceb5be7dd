"""Copies that go on while training does: what they commit equals what a blocking save commits, whatever the script does
with its optimizers and the memory of its state, and what changes the state behind their backs is found before anything
is sealed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import TensorDataset

from perdure import Session
from perdure.checkpoint import stage
from perdure.checkpoint.background.arena import Arena, Filled
from perdure.checkpoint.background.sealed import read_part, read_seal
from perdure.checkpoint.compare import Side
from perdure.checkpoint.load import read_items
from perdure.checkpoint.upload import Staged
from perdure.log.entry import checksum
from perdure.log.position import Position
from perdure.loop import deferral as deferral_module
from perdure.loop import save_effects
from perdure.loop.deferral import MOST_PLAIN_COPIES, CopyBegun, Deferral, NoCopy
from perdure.loop.save_effects import SaveEffects
from perdure.state.registry import Registry
from perdure.wire import CommitSelector
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.background import Uploads

EVERY = 2
STEPS = 9


class Net(nn.Module):
    """With buffers and random numbers in its forward, an embedding, and a weight that is never trained."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 4, max_norm=max_norm)
        self.norm = nn.BatchNorm1d(4)
        self.inner = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.2)
        self.outer = nn.Linear(3, 1)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, numbers: Tensor) -> Tensor:
        found: Tensor = self.outer(self.drop(self.inner(self.norm(self.words(numbers))))) * self.frozen
        return found.square().mean()


Step = Callable[[int, Tensor], None]


@dataclass
class Script:
    """What a script registers, and how it trains one batch: its number counts from 1."""

    registered: dict[str, Any]
    train: Step
    batches: int = 1
    """Per step."""
    changed: Callable[[], None] = lambda: None
    """It calls this where its state is another one and no hook has seen why."""


def plain(net: Net, optimizer: torch.optim.Optimizer, before: Callable[[int], None] = lambda _: None) -> Script:
    def train(number: int, batch: Tensor) -> None:
        before(number)
        optimizer.zero_grad()
        net(batch).backward()
        optimizer.step()

    return Script({"net": net, "optimizer": optimizer}, train)


def adam(**options: Any) -> Script:
    net = Net()
    return plain(net, torch.optim.AdamW(net.parameters(), lr=0.1, **options))


def momentum() -> Script:
    net = Net()
    return plain(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def accumulating() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def train(number: int, batch: Tensor) -> None:
        (net(batch) / 3).backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return Script({"net": net, "optimizer": optimizer}, train, batches=3)


def scaled() -> Script:
    """Of the later steps every other one is skipped, because a gradient is infinite: that is the one behind a save."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def train(number: int, batch: Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(net(batch)).backward()
        if number > 4 and number % 2:
            assert net.outer.weight.grad is not None
            net.outer.weight.grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()

    return Script({"net": net, "optimizer": optimizer, "scaler": scaler}, train)


def closures() -> Script:
    net = Net()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)

    def train(_: int, batch: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = net(batch)
            loss.backward()
            return loss

        optimizer.step(closure)

    return Script({"net": net, "optimizer": optimizer}, train)


def several() -> Script:
    """Two networks in turn, as in a GAN, and an average of one."""
    one, other = Net(), Net()
    first = torch.optim.Adam(one.parameters(), lr=0.1)
    second = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(one)
    schedule = torch.optim.lr_scheduler.ExponentialLR(first, 0.9)

    def train(_: int, batch: Tensor) -> None:
        for net, optimizer in ((one, first), (other, second)):
            optimizer.zero_grad()
            net(batch).backward()
            optimizer.step()
        average.update_parameters(one)
        schedule.step()

    things = {"one": one, "other": other, "first": first, "second": second, "average": average, "schedule": schedule}
    return Script(things, train)


def in_backward() -> Script:
    """Each parameter has an optimizer that steps as soon as its gradient is there.

    The hook keeps none of them: the collector does not see what a parameter's hook keeps.
    """
    net = Net()
    trained = [one for one in net.parameters() if one.requires_grad]
    things = {f"optimizer_{number}": torch.optim.Adam([one], lr=0.1) for number, one in enumerate(trained)}
    names = {id(one): name for one, name in zip(trained, things, strict=True)}
    script = Script({"net": net, **things}, lambda _, batch: net(batch).backward())
    own = weakref.ref(script)

    def step(parameter: Tensor) -> None:
        found = own()
        assert found
        optimizer = found.registered[names[id(parameter)]]
        optimizer.step()
        optimizer.zero_grad()

    for one in trained:
        one.register_post_accumulate_grad_hook(step)
    return script


def clamped() -> Script:
    """Weights are clamped behind each step."""
    net = Net()
    script = plain(net, torch.optim.Adam(net.parameters(), lr=0.1))

    def train(number: int, batch: Tensor) -> None:
        script.train(number, batch)
        with torch.no_grad():
            net.inner.weight.clamp_(-0.3, 0.3)

    return Script(script.registered, train)


def unseen() -> Script:
    """An optimizer that no hook of torch's sees, as a compiled one."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=True)
    step: Any = torch.optim.Adam.step

    def train(_: int, batch: Tensor) -> None:
        optimizer.zero_grad()
        net(batch).backward()
        step.__wrapped__(optimizer)

    return Script({"net": net, "optimizer": optimizer}, train)


def compiled() -> Script:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")

    def train(_: int, batch: Tensor) -> None:
        optimizer.zero_grad()
        net(batch).backward()
        step()
        script.changed()

    script = Script({"net": net, "optimizer": optimizer}, train)
    return script


class ScheduleFree(torch.optim.SGD):
    """Trains between two sequences, as schedule-free optimizers do, and lets a script look at their average."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), lr=0.1)

    def eval(self) -> None:
        for one in self.param_groups[0]["params"]:
            self.state[one].setdefault("z", torch.ones_like(one))
            one.data.lerp_(self.state[one]["z"], 0.5)

    def train(self) -> None:
        for one in self.param_groups[0]["params"]:
            one.data.lerp_(self.state[one]["z"], -1.0)


def schedule_free() -> Script:
    """The script looks at the average in the middle of a step: the weights are others, and nearly the same again."""
    net = Net()
    optimizer = ScheduleFree(net)

    def before(_: int) -> None:
        optimizer.eval()
        script.changed()
        with torch.no_grad():
            net.eval()(torch.arange(4))
        net.train()
        optimizer.train()

    script = plain(net, optimizer, before)
    return script


class Adapted(nn.Module):
    """A large base that is not trained, with a small adapter, as a LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 64).requires_grad_(requires_grad=False)
        self.base = nn.Linear(64, 64).requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(64, 1)

    def forward(self, numbers: Tensor) -> Tensor:
        found: Tensor = self.adapter(self.base(self.words(numbers)))
        return found.square().mean()


def adapted(disturb: Callable[[Adapted, int], None] = lambda _net, _number: None) -> Script:
    net = Adapted()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

    def train(number: int, batch: Tensor) -> None:
        optimizer.zero_grad()
        net(batch).backward()
        disturb(net, number)
        script.changed()
        optimizer.step()

    script = Script({"net": net, "optimizer": optimizer}, train)
    return script


def thaw(net: Adapted, number: int) -> None:
    """In the middle of a step, behind which a copy goes on, the base is trained, too."""
    if number == EVERY + 1:
        net.requires_grad_(requires_grad=True)


def rewrite(net: Adapted, _: int) -> None:
    net.base.weight.data.mul_(1.001)


def noisy() -> Script:
    net = Net()

    def before(_: int) -> None:
        net.inner.weight.data.mul_(1.001)

    return plain(net, torch.optim.SGD(net.parameters(), lr=0.1), before)


def seldom() -> Script:
    """The same, but only after some saves."""
    net = Net()

    def before(number: int) -> None:
        if number > 5:
            net.inner.weight.data.mul_(1.001)

    return plain(net, torch.optim.SGD(net.parameters(), lr=0.1), before)


def renormed() -> Script:
    """Its forward changes the weights of its embedding."""
    net = Net(max_norm=0.5)
    return plain(net, torch.optim.SGD(net.parameters(), lr=0.5))


def perturbed() -> Script:
    """Sharpness-aware: the weights are others for a second forward pass, and exactly the same again at the step."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(_: int, batch: Tensor) -> None:
        was = {one: one.detach().clone() for one in net.parameters()}
        net(batch).backward()
        for one in net.parameters():
            if one.grad is not None:
                one.data.add_(one.grad, alpha=0.05)
        optimizer.zero_grad()
        net(batch).backward()
        for one in net.parameters():
            one.data.copy_(was[one])
        optimizer.step()
        optimizer.zero_grad()

    return Script({"net": net, "optimizer": optimizer}, train)


def swapped() -> Script:
    """Weights get other memory during each step, and their own again."""
    net = Net()

    def before(_: int) -> None:
        own = net.inner.weight.data
        net.inner.weight.data = own + 1.0
        with torch.no_grad():
            net.eval()(torch.arange(4))
        net.train()
        net.inner.weight.data = own

    return plain(net, torch.optim.Adam(net.parameters(), lr=0.1), before)


def shared() -> Script:
    """Weights get memory that other processes may have, too, in the middle of a step."""
    net = Net()

    def before(number: int) -> None:
        if number > 5:
            net.share_memory()

    return plain(net, torch.optim.Adam(net.parameters(), lr=0.1), before)


def reloaded() -> Script:
    """In the middle of a step all state is loaded again, the optimizer's into other tensors."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def before(number: int) -> None:
        if number > 5:
            net.load_state_dict({name: one + 1 for name, one in net.state_dict().items()})
            optimizer.load_state_dict(optimizer.state_dict())

    return plain(net, optimizer, before)


HONEST: dict[str, Callable[[], Script]] = {
    "loop": partial(adam, foreach=False), "foreach": partial(adam, foreach=True), "fused": partial(adam, fused=True),
    "amsgrad": partial(adam, amsgrad=True), "momentum": momentum, "accumulating": accumulating, "scaled": scaled,
    "closures": closures, "several": several, "in-backward": in_backward, "clamped": clamped,
    "adapted": adapted, "thawed": partial(adapted, thaw),
}  # fmt: skip
EITHER: dict[str, Callable[[], Script]] = {
    "unseen": unseen, "noisy": noisy, "renormed": renormed, "seldom": seldom, "perturbed": perturbed,
    "swapped": swapped, "shared": shared, "reloaded": reloaded,
}  # fmt: skip
"""What is found only if it happens while something is copied."""


States = dict[int, dict[str, Tensor]]


def train(
    root: Path, make: Callable[[], Script], *, stands: bool = False
) -> tuple[list[int], States, Deferral[Filled]]:
    """Trains; returns the steps whose copies went on while the script had its batch, and the state of each step as it
    was when the script got the next batch. `stands`: a copy stands still until the script says that it has changed
    something, which then waits for it."""
    torch.manual_seed(1)
    deferred: list[int] = []
    states: States = {}
    with Session.from_env(str(root)) as session:
        script = make()
        session.register(**script.registered)
        run = session._core.run
        uploads, deferral = Uploads(session), run.background._effects.deferral
        if stands:
            script.changed = standing(run.background._effects)
        numbers = torch.arange(4 * STEPS * script.batches) % 8
        for _ in session.epochs(1):
            for number, (batch,) in enumerate(session.loader(TensorDataset(numbers), 4), 1):
                if session.steps_done not in states:
                    state = run.state()
                    states[session.steps_done] = {
                        name: tensor.detach().clone() for name, tensor in {**state.shared, **state.replicated}.items()
                    }
                    deferred += [session.steps_done] if deferral.copies else []
                script.train(number, batch)
                if number % script.batches == 0:
                    session.step()
                    if uploads.under_way:
                        uploads.settle()
    return deferred, states, deferral


def standing(effects: SaveEffects) -> Callable[[], None]:
    """A copy beside the training stands still until this is called, which waits for its end."""
    fill, goes_on = effects.copies.fill, threading.Event()

    def stood(*given: Any, **named: Any) -> Filled | str:
        assert threading.current_thread() is threading.main_thread() or goes_on.wait(120)
        return fill(*given, **named)

    def go_on() -> None:
        if effects.deferral.copies:
            goes_on.set()
            effects.deferral.settle()

    vars(effects.copies)["fill"] = stood
    return go_on


def committed(root: Path) -> States:
    """The state in each commit that training has gone on behind."""
    found: States = {}
    for entry in entries(root):
        if entry["kind"] == "Committed" and entry["reason"] == "cadence":
            side = Side.read(root.as_uri(), CommitSelector(seq=entry["seq"]), {})
            found[entry["step"]] = read_items(side.store, side.manifest, side.manifest.tensors)
    return found


def check_commits(made: States, states: States) -> None:
    """Each has the state of its step."""
    assert made
    for step, found in made.items():
        assert found.keys() == states[step].keys()
        assert [one for one, tensor in found.items() if not torch.equal(tensor, states[step][one])] == []


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    settings = {"CHECK_SECONDS": "0", "KEEP": "99", "EVERY_STEPS": str(EVERY), "BACKGROUND_BYTES": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PERDURE_{name}", value)
    yield
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("name", [*HONEST, *EITHER])
def test_a_commit_holds_the_state_of_its_step(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deferred, states, deferral = train(tmp_path / "root", {**HONEST, **EITHER}[name])
    made = committed(tmp_path / "root")
    check_commits(made, states)
    assert deferred
    said = "where no optimizer is seen to step" in capfd.readouterr().err
    if name in HONEST:
        assert made.keys() & set(deferred)
        assert not said
    assert deferral.refused == (said or name == "closures")


def compilations() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.usefixtures("environ")
def test_a_compiled_step_in_the_middle_of_a_copy_is_found_and_is_compiled_as_often_as_without_a_session(
    tmp_path: Path,
) -> None:
    torch.compiler.reset()
    before, script = compilations(), compiled()
    for number, batch in enumerate((torch.arange(4 * STEPS) % 8).split(4), 1):
        script.train(number, batch)
    alone = compilations() - before
    assert alone
    torch.compiler.reset()
    before = compilations()
    deferred, states, deferral = train(tmp_path, compiled, stands=True)
    assert compilations() - before == alone
    check_commits(committed(tmp_path), states)
    assert deferred
    assert deferral.refused


@pytest.mark.usefixtures("environ")
def test_an_average_that_a_schedule_free_optimizer_shows_in_the_middle_of_a_copy_is_not_committed(
    tmp_path: Path,
) -> None:
    deferred, states, deferral = train(tmp_path, schedule_free, stands=True)
    check_commits(committed(tmp_path), states)
    assert deferred
    assert deferral.refused


@pytest.mark.usefixtures("environ")
def test_a_base_that_is_unfrozen_in_the_middle_of_a_copy_waits_for_it(tmp_path: Path) -> None:
    deferred, states, deferral = train(tmp_path, partial(adapted, thaw), stands=True)
    made = committed(tmp_path)
    check_commits(made, states)
    assert EVERY in deferred
    assert EVERY in made
    assert not deferral.refused


@pytest.mark.usefixtures("environ")
def test_a_base_that_changes_in_the_middle_of_a_copy_is_not_committed(tmp_path: Path) -> None:
    deferred, states, deferral = train(tmp_path, partial(adapted, rewrite), stands=True)
    check_commits(committed(tmp_path), states)
    assert deferred
    assert deferral.refused


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("after_a_pause", [False, True])
def test_a_copy_that_changes_is_no_failed_save_and_is_made_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_a_pause: bool
) -> None:
    """Nothing is wrong with the store or the memory: no failure is counted, and nobody waits before the next try."""
    monkeypatch.setattr("perdure.checkpoint.schedule.pause", lambda *_: 1e-9)
    deferred: list[int] = []
    copied: list[int] = []
    with Session.from_env(str(tmp_path), max_save_failures=1) as session:
        script = plain(net := Net(), torch.optim.SGD(net.parameters(), lr=0.1))
        session.register(**script.registered)
        effects, uploads = session._core.run.background._effects, Uploads(session)
        fill, goes_on = effects.copies.fill, threading.Event()

        def halted(*given: Any, **named: Any) -> Filled | str:
            copied.append(session.steps_done)
            assert threading.current_thread() is threading.main_thread() or goes_on.wait(120)
            return fill(*given, **named)

        vars(effects.copies)["fill"] = halted
        for _ in session.epochs(1):
            for number, (batch,) in enumerate(session.loader(TensorDataset(torch.arange(40) % 8), 4), 1):
                if after_a_pause and number == 1:
                    session._core.run.schedule.failed(1, 1.0)
                if effects.deferral.copies:
                    deferred.append(session.steps_done)
                    net.inner.weight.data.add_(1.0)
                    goes_on.set()
                script.train(number, batch)
                session.step()
                if uploads.under_way:
                    uploads.settle()
        (first,) = deferred
        assert after_a_pause or first == EVERY
        assert copied[:2] in ([first, first + 1], [first, first + 2])
        assert effects.copies.process is not None
        assert session._core.run.checkpointer.failures == 0
        assert not session._core.run.schedule.paused
    assert min(committed(tmp_path)) in copied[1:2]


@pytest.mark.usefixtures("environ")
def test_a_step_longer_than_the_deadline_of_a_save_fails_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation within a step, say: an upload begins behind it, and so does its time."""
    later: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(later))
    monkeypatch.setattr(save_effects, "time", clock)
    with Session.from_env(str(tmp_path)) as session:
        script, effects, uploads = adam(), session._core.run.background._effects, Uploads(session)
        session.register(**script.registered)
        for _ in session.epochs(1):
            for number, (batch,) in enumerate(session.loader(TensorDataset(torch.arange(20) % 8), 4), 1):
                if effects.deferral.copies:
                    later.append(2 * save_effects.DEADLINE_SECONDS)
                script.train(number, batch)
                session.step()
                if uploads.under_way:
                    uploads.settle()
        assert later
        assert session._core.run.checkpointer.failures == 0
    assert EVERY in committed(tmp_path)


@pytest.mark.usefixtures("environ")
def test_the_pause_after_an_upload_that_took_too_long_is_one_for_what_training_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on beside an upload, so a long one is no reason to save seldom."""
    later: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(later))
    monkeypatch.setattr(save_effects, "time", clock)
    stood: list[float] = []

    def pause(_: int, seconds: float) -> float:
        stood.append(seconds)
        return 1e9

    monkeypatch.setattr("perdure.checkpoint.schedule.pause", pause)
    with Session.from_env(str(tmp_path)) as session:
        script, effects = adam(), session._core.run.background._effects
        session.register(**script.registered)
        vars(effects.copies)["order"] = lambda *_: None  # an uploader that never begins
        for _ in session.epochs(1):
            for number, (batch,) in enumerate(session.loader(TensorDataset(torch.arange(40) % 8), 4), 1):
                script.train(number, batch)
                session.step()
                if number == EVERY + 2:
                    later.append(2 * save_effects.DEADLINE_SECONDS)
    (seconds,) = stood
    assert seconds < save_effects.DEADLINE_SECONDS


@pytest.mark.usefixtures("environ")
def test_an_error_at_the_hand_out_leaves_no_thread_that_copies(tmp_path: Path) -> None:
    copies: list[bool] = []
    with suppress(ZeroDivisionError), Session.from_env(str(tmp_path)) as session:
        script = adam()
        session.register(**script.registered)
        run = session._core.run
        gather, deferral = run.peers.gather, run.background._effects.deferral

        def fails(doing: str, value: Any) -> Any:
            if doing == "has copied what it saves":
                copies.append(deferral.copies)
                raise ZeroDivisionError
            return gather(doing, value)

        vars(run.peers)["gather"] = fails
        try:
            for _ in session.epochs(1):
                for number, (batch,) in enumerate(session.loader(TensorDataset(torch.arange(40) % 8), 4), 1):
                    script.train(number, batch)
                    session.step()
        finally:
            copies.append(deferral.copies)
    assert copies == [True, False]


class Clock:
    """Each look at it takes a second, unless it stands."""

    def __init__(self) -> None:
        self.now = 0.0
        self.goes = True

    def __call__(self) -> float:
        self.now += self.goes
        return self.now


class Halting:
    """Fills an arena, and stops once half of it is copied, until it may go on."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.half, self.on = threading.Event(), threading.Event()

    def __call__(self, staged: Staged, *, whole: str = "") -> Filled | str:
        def pieces() -> Iterator[memoryview]:
            read = 0
            for piece in staged.pieces():
                yield piece
                read += len(piece)
                if read > staged.size // 2 and not self.half.is_set():
                    self.half.set()
                    assert self.on.wait(60)

        halting = replace(staged, pieces=pieces)
        return self.arena.fill(halting, uid="u", run=1, name="a", position=Position(3, 0, {}), whole=whole)

    def holds(self) -> bytes | None:
        seal = read_seal(self.arena.fd)
        return b"".join(map(bytes, read_part(self.arena.fd, seal)[0].blocks())) if seal else None


@dataclass
class Halted:
    """A copy that stands in the middle: it has the weights, and lacks the optimizer's momenta."""

    net: nn.Sequential
    optimizer: torch.optim.Optimizer
    deferral: Deferral[Filled]
    fill: Halting
    expected: bytes = field(repr=False)
    clock: Clock = field(default_factory=Clock)

    @property
    def weights(self) -> list[nn.Parameter]:
        return list(self.net.parameters())

    @property
    def momenta(self) -> list[Tensor]:
        return [state["momentum_buffer"] for state in self.optimizer.state.values()]


@pytest.fixture
def halted() -> Iterator[Halted]:
    torch.manual_seed(1)
    net = nn.Sequential(*(nn.Linear(2000, 1000, bias=False) for _ in range(3)))  # about a block of 8 MiB each
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    registry = Registry()
    registry.add("net", net)
    registry.add("optimizer", optimizer)
    for one in net.parameters():
        one.grad = torch.rand_like(one)
    optimizer.step()
    deferral, fill = Deferral[Filled](registry, clock := Clock()), Halting()
    staged = stage.stage(registry.state(None), 0, 1)
    expected = b"".join(map(bytes, staged.blocks()))
    begun = deferral.copy(staged, fill, trains=True)
    assert begun == CopyBegun(len(expected), checksum(expected))
    clock.now += 1.0
    del staged
    assert fill.half.wait(60)
    yield Halted(net, optimizer, deferral, fill, expected, clock)
    fill.on.set()
    deferral.end()
    fill.arena.close()


def found(halted: Halted) -> Filled | NoCopy:
    """The outcome. What is sealed is what was there when the copy began, and nothing is sealed otherwise."""
    halted.fill.on.set()
    result = halted.deferral.found()
    assert halted.fill.holds() == (halted.expected if isinstance(result, Filled) else None)
    return result


def test_an_optimizer_that_steps_waits_for_the_copy(halted: Halted) -> None:
    stepping = threading.Thread(target=halted.optimizer.step)
    before, waits = [one.clone() for one in halted.weights], threading.Event()
    settle = halted.deferral.settle

    def noted() -> None:
        waits.set()
        settle()

    vars(halted.deferral)["settle"] = noted
    stepping.start()
    assert waits.wait(60)
    assert halted.fill.holds() is None
    assert stepping.is_alive()
    assert all(map(torch.equal, before, halted.weights))
    halted.fill.on.set()
    stepping.join(60)
    assert not any(map(torch.equal, before, halted.weights))
    assert isinstance(found(halted), Filled)
    assert not halted.deferral.refused


def test_nobody_is_told_of_a_step_that_waits_for_a_copy(halted: Halted) -> None:
    """Until the state changes, a rank that loses a peer can leave an image of it."""
    found(halted)
    told, waits = threading.Event(), threading.Event()
    told_of_steps = register_optimizer_step_pre_hook(lambda *_: told.set())
    deferral, fill = Deferral[Filled](halted.deferral._registry), Halting()
    settle = deferral.settle

    def noted() -> None:
        waits.set()
        settle()

    vars(deferral)["settle"] = noted
    try:
        deferral.copy(stage.stage(halted.deferral._registry.state(None), 0, 1), fill, trains=True)
        assert fill.half.wait(60)
        stepping = threading.Thread(target=halted.optimizer.step)
        stepping.start()
        assert waits.wait(60)
        assert not told.is_set()
        fill.on.set()
        stepping.join(60)
        assert told.is_set()
    finally:
        fill.on.set()
        deferral.end()
        told_of_steps.remove()
        fill.arena.close()


@pytest.mark.parametrize("large", [True, False])
def test_a_step_that_comes_before_a_copy_beside_it_pays_has_further_ones_made_at_once_for_a_while(
    halted: Halted, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """The checksum, and what is left of the copy, take longer than a copy while training waits."""
    found(halted)
    if not large:
        monkeypatch.setattr(deferral_module, "LARGE_BYTES", len(halted.expected) + 1)
    staged = stage.stage(halted.deferral._registry.state(None), 0, 1)
    fill = Halting()
    fill.on.set()
    for plain in (1, 3, 7, MOST_PLAIN_COPIES, MOST_PLAIN_COPIES) if large else (0, 0):
        comes_early(halted, staged)
        copies = [type(halted.deferral.copy(staged, fill, trains=True)) for _ in range(plain)]
        assert copies == [Filled] * plain
    assert isinstance(halted.deferral.copy(staged, fill, trains=True), CopyBegun)
    assert isinstance(halted.deferral.found(), Filled)
    comes_early(halted, staged)
    copies = [type(halted.deferral.copy(staged, fill, trains=True)) for _ in range(2)]
    assert copies == [Filled if large else CopyBegun, CopyBegun], "one that has paid ends it"
    fill.arena.close()


def comes_early(halted: Halted, staged: Staged) -> None:
    """A copy beside training, and a step in its middle."""
    fill = Halting()
    assert isinstance(halted.deferral.copy(staged, fill, trains=True), CopyBegun)
    assert fill.half.wait(60)
    copy = halted.deferral._copy
    assert copy
    await_end = copy.await_end

    def awaited() -> None:
        fill.on.set()
        await_end()

    vars(copy)["await_end"] = awaited
    halted.clock.goes = False
    halted.deferral.settle()
    halted.clock.goes = True
    assert isinstance(halted.deferral.found(), Filled)
    fill.arena.close()


def clamp(halted: Halted) -> None:
    for one in halted.momenta:
        one.clamp_(0.0, 0.01)


def step_unseen(halted: Halted) -> None:
    step: Any = torch.optim.SGD.step
    step.__wrapped__(halted.optimizer)


def change_a_byte(halted: Halted) -> None:
    halted.momenta[1].data.view(-1).view(torch.uint8)[4_000_001] += 1


def load(halted: Halted) -> None:
    """Over what is there."""
    saved = {name: tensor.clone() for name, tensor in enumerate(halted.momenta)}
    for name, tensor in saved.items():
        halted.momenta[name].copy_(tensor * 2)


CHANGED = NoCopy("the state has changed, or has got other memory, while it was copied", changed=True)


@pytest.mark.parametrize("change", [clamp, step_unseen, change_a_byte, load])
def test_what_changes_the_state_in_the_middle_of_a_copy_leaves_nothing_in_the_arena(
    halted: Halted, change: Callable[[Halted], None], capsys: pytest.CaptureFixture[str]
) -> None:
    change(halted)
    assert found(halted) == CHANGED
    assert halted.deferral.refused
    assert "training waits for the copies of its checkpoints" in capsys.readouterr().err


def change_what_is_copied(halted: Halted) -> None:
    halted.weights[0].data.add_(1.0)


def add_nothing(halted: Halted) -> None:
    for one in halted.momenta:
        one.add_(0.0)


def perturb_and_take_back(halted: Halted) -> None:
    was = [one.clone() for one in halted.momenta]
    for one, before in zip(halted.momenta, was, strict=True):
        one.data.add_(0.1)
        one.data.copy_(before)


@pytest.mark.parametrize("change", [change_what_is_copied, add_nothing, perturb_and_take_back])
def test_what_the_copy_does_not_see_does_not_end_it(halted: Halted, change: Callable[[Halted], None]) -> None:
    change(halted)
    assert isinstance(found(halted), Filled)


def everything(halted: Halted) -> list[Tensor]:
    return [*halted.weights, *halted.momenta]


def give_other_memory(halted: Halted) -> None:
    for one in everything(halted):
        one.data = one.data + 1.0


def set_other_memory(halted: Halted) -> None:
    with torch.no_grad():
        for one in everything(halted):
            one.set_(torch.zeros_like(one))  # type: ignore[call-overload]


def convert(halted: Halted) -> None:
    halted.net.to(torch.float64)


def swap(halted: Halted) -> None:
    for one in halted.momenta:
        torch.utils.swap_tensors(one, torch.zeros_like(one))


def delete(halted: Halted) -> None:
    halted.optimizer.state.clear()
    for layer in halted.net:
        del layer.weight


def assign(halted: Halted) -> None:
    halted.net.load_state_dict({name: one + 1.0 for name, one in halted.net.state_dict().items()}, assign=True)
    state = halted.optimizer.state_dict()
    for one in state["state"].values():
        one["momentum_buffer"] = one["momentum_buffer"] + 1.0
    halted.optimizer.load_state_dict(state)


@pytest.mark.parametrize("move", [give_other_memory, set_other_memory, convert, swap, delete, assign])
def test_what_gets_other_memory_is_copied_as_it_was(halted: Halted, move: Callable[[Halted], None]) -> None:
    move(halted)
    assert isinstance(found(halted), Filled)


def share(momentum: Tensor) -> None:
    """Torch replaces the memory of the storage, whoever holds it."""
    momentum.share_memory_()


def let_grow(momentum: Tensor) -> None:
    momentum.resize_(4000, 2000)


def empty(momentum: Tensor) -> None:
    momentum.untyped_storage().resize_(0)


@pytest.mark.parametrize("free", [share, let_grow, empty])
def test_memory_that_is_freed_in_the_middle_of_a_copy_ends_nothing_but_the_copy(
    halted: Halted, free: Callable[[Tensor], None]
) -> None:
    """Whether what is freed can still be read is up to the allocator."""
    address = halted.momenta[-1].data_ptr()
    free(halted.momenta[-1])
    assert halted.momenta[-1].data_ptr() != address
    result = found(halted)
    assert isinstance(result, Filled) or result == CHANGED


def test_a_step_with_a_closure_waits_at_once_so_later_copies_go_on_beside_none(halted: Halted) -> None:
    halted.fill.on.set()
    halted.optimizer.step(lambda: torch.zeros(()))  # type: ignore[arg-type, return-value]
    assert isinstance(found(halted), Filled)
    state = stage.stage(halted.deferral._registry.state(None), 0, 1)
    assert isinstance(halted.deferral.copy(state, halted.fill, trains=True), Filled)


def test_a_forked_process_waits_for_no_copy_of_its_parent(halted: Halted) -> None:
    child = os.fork()
    if not child:
        signal.alarm(60)  # which ends one that waits
        try:
            halted.deferral.steps(closure=False)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert isinstance(found(halted), Filled)


def test_a_copy_that_cannot_be_made_fails_its_save_and_holds_up_nobody(halted: Halted) -> None:
    def fails(staged: Staged, *, whole: str = "") -> str:
        raise MemoryError

    found(halted)
    state = stage.stage(halted.deferral._registry.state(None), 0, 1)
    assert isinstance(halted.deferral.copy(state, fails, trains=True), CopyBegun)
    halted.optimizer.step()
    result = halted.deferral.found()
    assert isinstance(result, NoCopy)
    assert "no memory was left" in result.why
    assert not result.changed
    assert not halted.deferral.refused


def test_what_an_ended_copy_has_read_is_held_no_longer(halted: Halted) -> None:
    """Else the script would pay for memory that it has replaced."""
    old = [weakref.ref(one.untyped_storage()) for one in halted.momenta]
    halted.optimizer.state.clear()
    assert all(one() is not None for one in old)
    found(halted)
    gc.collect()
    assert all(one() is None for one in old)


def test_a_signal_that_interrupts_the_start_of_a_copy_leaves_none_that_goes_on(
    halted: Halted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C, say, or a handler that raises."""
    found(halted)
    copied: list[Staged] = []

    def fill(staged: Staged, *, whole: str = "") -> str:
        copied.append(staged)
        return "it was copied"

    held = threading.Event()
    start, run = deferral_module._Copy.start, deferral_module._Copy.run
    threads: list[threading.Thread] = []

    def interrupted(copy: threading.Thread) -> None:
        threads.append(copy)
        start(copy)
        raise KeyboardInterrupt

    def run_later(copy: Any) -> None:
        assert held.wait(60)
        run(copy)

    monkeypatch.setattr(deferral_module._Copy, "start", interrupted)
    monkeypatch.setattr(deferral_module._Copy, "run", run_later)
    state = stage.stage(halted.deferral._registry.state(None), 0, 1)
    with pytest.raises(KeyboardInterrupt):
        halted.deferral.copy(state, fill, trains=True)
    held.set()
    halted.deferral.settle()
    threads[0].join(60)
    assert not copied
    assert halted.deferral.found() == NoCopy("it was interrupted")


def test_a_positional_argument_of_a_step_that_is_no_closure_ends_no_copies(halted: Halted) -> None:
    before = deferral_module._hook(weakref.ref(halted.deferral))
    halted.fill.on.set()
    before(halted.optimizer, (halted.optimizer, 0.5), {})
    assert isinstance(found(halted), Filled)
    assert not halted.deferral.refused
