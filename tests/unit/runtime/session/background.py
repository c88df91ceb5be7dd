"""What ranks do in test_background: they train, save in the background, and disturb the process that uploads."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from perdure.checkpoint.background import arena
from perdure.checkpoint.background.arena import Filled
from perdure.checkpoint.background.copies import Copies
from perdure.checkpoint.background.state import CommitState
from perdure.checkpoint.background.uploader_messages import MOVES, UploaderWord, write_word
from perdure.checkpoint.upload import Staged
from perdure.errors import UserError
from perdure.loop import background_saves
from perdure.loop.leaving import Exit
from perdure.loop.reporting import classify
from perdure.session.session import Session
from tests.support.undrawn import Script
from tests.support.uploaders import uploaders

SAMPLES = 96
BATCH = 8
PATIENCE_SECONDS = 60.0
FREE_MEMORY, STAND_SECONDS = vars(arena)["free_memory"], background_saves.STAND_SECONDS


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.randn(SAMPLES, 6, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)
    )


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 24), nn.Dropout(0.1), nn.ReLU(), nn.Linear(24, 3))


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores this signal."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def has_not_ended(child: int) -> bool:
    """Whether a child of this process is alive. One that is not reaped may have ended; one whose first thread alone has
    ended is alive, and holds its pipes open."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


class Uploads:
    """The process that uploads for this rank."""

    def __init__(self, session: Session) -> None:
        self._background = session._core.run.background
        self._frozen: int | None = None

    @property
    def run(self) -> int:
        """The run that this process is a rank of."""
        return self._background._run.checkpointer.run

    @property
    def process(self) -> Any:
        return self._background._effects.copies.process

    def freeze(self) -> None:
        """Before the first order: later orders stay in progress until `thaw`."""
        self.process.start()
        while not ignores(self.process.pid, signal.SIGTERM):  # by then it would end with its trainer
            time.sleep(0.001)
        self._frozen = self.process.pid
        os.kill(self.process.pid, signal.SIGSTOP)

    def wait_for_end_of_frozen(self) -> None:
        """Until the process that was frozen has been killed and is gone: until then no save can begin."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self._frozen is not None and has_not_ended(self._frozen) and time.monotonic() < until:
            time.sleep(0.001)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def move(self) -> None:
        """The process says that the store has taken more of the save under way."""
        self.process._hear(self.process._process, write_word(UploaderWord(MOVES, self.process.busy)))

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """From now on, until the save under way has failed."""

        def act() -> None:
            while self.under_way and not self._background._known.failed:
                if pid := self.process.pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.001)

        threading.Thread(target=act, daemon=True).start()

    def wait(self) -> None:
        """Until this rank's part is in the store, or has failed. What the ranks say then they read at later steps."""
        until = time.monotonic() + PATIENCE_SECONDS
        while self._uploads and time.monotonic() < until:
            self._background.words()
            time.sleep(0.01)

    @property
    def _uploads(self) -> bool:
        known = self._background._known
        return known.save is not None and known.save.number > max(known.durable, known.failed)

    def settle(self) -> None:
        """Until the save in progress continues only by a vote: neither the process nor the store has anything to
        answer."""
        self.wait()
        while self._background._known.commit in (CommitState.PREPARING, CommitState.SENT):
            self._background.words()
            time.sleep(0.001)

    def wait_for_pause(self) -> None:
        """Until a save that failed is due again."""
        schedule = self._background._run.schedule
        while schedule._again_at is not None and time.monotonic() < schedule._again_at:
            time.sleep(0.01)

    @property
    def under_way(self) -> int | None:
        """The step of the save under way."""
        save = self._background._known.save
        return save.step if save else None


@dataclass(frozen=True)
class Disturbance:
    """What happens in which step. Numbers of steps; 0 for never."""

    freeze: Sequence[int] = ()
    """The ranks whose uploading process stands still from the second step on."""
    thaw_at: int = 0
    kill_at: Sequence[int] = ()
    """Where it is killed, on those ranks."""
    kill_all_at: int = 0
    """From here on every one that uploads the save under way is killed."""
    save_at: int = 0
    pin_at: int = 0
    pin_epoch: int = -1
    """The epoch that begins with a request for a pinned save."""
    impatient_at: int = 0
    """After this step no save is waited for."""
    short_until: int = 0
    """Until then no memory is free."""
    differs_at: int = 0
    """Where rank 1 changes its weights."""
    wait_at: int = 0
    """Where the ranks wait until their parts are in the store."""
    pause_at: int = 0
    """Where they wait until a save that has failed is due again."""
    blocked: Sequence[int] = (0, 0)
    """Between these two nothing can be written for run 1."""

    def begin(self, step: int, rank: int, uploads: Uploads, root: Path) -> None:
        """A step begins."""
        if rank in self.freeze:
            for act, when in ((uploads.freeze, (2,)), (uploads.thaw, (self.thaw_at,)), (uploads.kill, self.kill_at)):
                if step in when:
                    act()
        if step == self.kill_all_at:
            uploads.kill_all()
        vars(background_saves)["STAND_SECONDS"] = 0.0 if step == self.impatient_at else STAND_SECONDS
        if self.short_until:
            vars(arena)["free_memory"] = FREE_MEMORY if step >= self.short_until else lambda: 0
        if step in self.blocked and rank == 0:
            block(root / "data" / "1", blocks=step == self.blocked[0])

    def end(self, step: int, uploads: Uploads) -> None:
        """A step is done."""
        if step == self.wait_at:
            uploads.wait()
        if step == self.pause_at:
            uploads.wait_for_pause()


def train(root: str, *, epochs: int = 4, loops: int = 1, **disturbance: Any) -> dict[str, Any]:
    """Trains to the end, or leaves when it is asked to."""
    torch.set_num_threads(1)
    told: list[tuple[int, int, int]] = []
    under_way: dict[int, int | None] = {}
    happens = Disturbance(**disturbance)
    with Session.from_env(root) as session:
        net = network()
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer)
        session.on("committed", lambda commit: told.append((commit.seq, commit.step, session.steps_done)))
        uploads, script = Uploads(session), Script("torch")
        begun = None
        with suppress(Exit):
            for epoch in chain.from_iterable(session.epochs(epochs) for _ in range(loops)):
                if epoch == happens.pin_epoch:
                    session.save(pin="epoch")
                for inputs, labels in session.loader(dataset(), BATCH):
                    script.goes_on()
                    begun = session.steps_done if begun is None else begun
                    step = session.steps_done + 1
                    happens.begin(step, session.rank, uploads, Path(root))
                    if step == happens.differs_at and session.rank == 1:
                        net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                    optimizer.step()
                    script.calls()
                    if step in (happens.save_at, happens.pin_at):
                        session.save(pin="best" if step == happens.pin_at else None)
                    session.step()
                    under_way[step] = uploads.under_way
                    happens.end(step, uploads)
        return {
            "begun": begun,
            "steps": session.steps_done,
            "told": told,
            "weights": digest(net),
            "drawn": torch.rand(1).item(),
            "under_way": under_way,
            "waits_for_copies": session._core.run.background._effects.deferral.refused,
        }


def without_process(root: str) -> dict[str, Any]:
    """Trains where no process can be started."""
    python, sys.executable = sys.executable, "/nowhere/python"
    try:
        return train(root)
    finally:
        sys.executable = python


def changing(root: str) -> dict[str, Any]:
    """Trains, and whatever rank 1 copies while it trains has changed meanwhile."""
    fill = Copies.fill

    def changed(self: Copies, staged: Staged, *, whole: str = "", **given: Any) -> Filled | str:
        return fill(self, staged, whole="of another state" if whole and staged.rank == 1 else whole, **given)

    vars_of: Any = Copies
    vars_of.fill = changed
    try:
        return train(root)
    finally:
        vars_of.fill = fill


def differing(root: str) -> dict[str, Any]:
    """Fails because rank 1 differs, and reports its remains in this process."""
    try:
        train(root, differs_at=8)
    except UserError as error:
        files = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        return {
            "message": str(error),
            "outcome": classify(error)[0].value,
            "uploaders": [pid for pid, trainer in uploaders().items() if trainer == os.getpid()],
            "arenas": [file for file in files if "perdure-arena" in file],
        }
    raise AssertionError("nobody has noticed that rank 1 differs")


def block(folder: Path, *, blocks: bool) -> None:
    """Puts a file where a folder has to be, or removes it."""
    if blocks:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.touch()
    else:
        folder.unlink()
