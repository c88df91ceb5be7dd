"""Mirrors this rank's part of a sharded model in another pod: a death then costs a step, not all since the commit.

perdure.loop.mirror decides when. A snapshot is an image (perdure.checkpoint.image_file) in a file of this pod's agent.
It is copied while training goes on, as a save is (perdure.loop.deferral), and then a thread sends it to the buddy: the
rank with the same number in the next pod. So after a death the survivors' agents have all parts, and nothing has to be
written any more.

Called by perdure.session.boundary; perdure.loop.survivor_snapshots tells the agent what is there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from awscrt.checksums import crc64nvme

from perdure.checkpoint import boxes
from perdure.checkpoint.background.arena import StateChanged
from perdure.checkpoint.image_file import Label, write_image
from perdure.checkpoint.upload import Staged
from perdure.console import say
from perdure.errors import in_words
from perdure.group.mirror_link import LinkBroken, MirrorReceiver, MirrorSender, own_address
from perdure.host.memory import free_memory
from perdure.log.images import Stamp
from perdure.loop.deferral import Deferral, NoCopy
from perdure.loop.mirror import MirrorState, MirrorWord, agreed, is_due, must_agree, renewed, taken
from perdure.loop.safe_point import MARGIN_BYTES, SnapshotSource, safe_point
from perdure.state.numpy_random import NumpyGenerator
from perdure.state.python_random import PythonGenerator
from perdure.state.rng import Reading

OWN_SLOTS: Final = 2
"""The first of the agent's files for a mirror are for this rank's own snapshots, the others for another rank's."""


@dataclass(frozen=True)
class _Link:
    """The connections of one run."""

    receiver: MirrorReceiver
    sender: MirrorSender | None
    """None if the buddy does not take it."""

    def close(self) -> None:
        """Nothing is sent or received any more."""
        self.receiver.close()
        if self.sender:
            self.sender.close()


class _Total:
    """The checksum of all pieces so far."""

    crc = 0

    def add(self, piece: memoryview) -> memoryview:
        """Adds a piece, and returns it."""
        self.crc = crc64nvme(piece, self.crc)
        return piece


class Mirror:
    """For one process. Called in the main thread."""

    def __init__(self, run: SnapshotSource) -> None:
        self._run = run
        self._state = MirrorState(run.settings.mirror or 0)
        self._ranks: tuple[int | None, int] | None = None
        """The run and the world for which `_wanted` is known."""
        self._wanted = False
        self._link: _Link | None = None
        self._deferral: Deferral[Path] = Deferral(run.registry)
        self._generators = Reading(PythonGenerator().state, NumpyGenerator().state)
        self._made: dict[int, Stamp] = {}
        """The whole snapshot in each of this rank's own slots."""
        self._sent: queue.SimpleQueue[str] = queue.SimpleQueue()
        """Why the snapshot under way is not at the buddy; "" if it is."""
        self._trouble = ""
        """Why there is no connection to the buddy."""
        self._why = ""
        """Why there is nothing to send."""
        self._said = ""

    @property
    def newest(self) -> Stamp | None:
        """Of the newest snapshot in this rank's slots. From any thread."""
        return max(self._made.values(), key=lambda stamp: stamp.place, default=None)

    def at_boundary(self, *, trains: bool) -> None:
        """All ranks are at a place where the run may stop: takes the snapshot that is due. Collective.

        `trains`: the script gets a batch to train next. A copy goes on meanwhile.
        """
        if not self._state.every or not trains:
            return
        run = self._run
        if self._ranks != (run.settings.run, run.world):
            self._ranks_changed()
        if not self._wanted or not is_due(self._state, run.progress.step):
            return
        if self._link is None:
            self._connect()
        slot, self._state = self._state.slot, taken(self._state, run.progress.step)
        self._why = self._taken(slot)

    def before_step(self) -> None:
        """The script has finished another step, which counts once this returns. Collective."""
        self.settle()
        if self._wanted and must_agree(self._state, self._run.progress.step + 1):
            self._agree()

    def settle(self) -> None:
        """The state may change: waits until nothing is copied any more."""
        self._deferral.settle()

    def end(self) -> None:
        """This process is no rank any more."""
        self._deferral.end()
        self._disconnect()
        self._wanted = False

    # The ranks.

    def _ranks_changed(self) -> None:
        run = self._run
        self._ranks = run.settings.run, run.world
        self._disconnect()
        self._state = renewed(self._state)
        parts = boxes.parts(run.registry.parameters(), run.world) if run.registry.sharded else (0,) * run.world
        obstacle = self._obstacle(parts)
        obstacles = run.peers.gather("looks whether it can be mirrored", obstacle)
        why = next(filter(None, obstacles), "")
        self._wanted = not why
        if why and run.rank == 0:
            say(f"checkpoint.mirror: nothing is mirrored: {why}")

    def _obstacle(self, parts: Sequence[int]) -> str:
        run = self._run
        if not any(parts.count(part) == 1 for part in parts):
            return "each rank's state is on another rank, too"
        if run.world <= run.settings.pod:
            return "all ranks are in one pod"
        if not run.settings.mirror_files:
            return "no agent keeps the snapshots"
        if run.framework:
            return f"{run.framework.name} keeps states of its own, which the ranks put together where they save"
        if any(parameter.device.type != "cpu" for parameter in run.registry.parameters()):
            return "parameters are on an accelerator"
        if run.registry.extra:
            return f"a module of type {run.registry.extra} keeps state that is no tensor"
        return ""

    def _connect(self) -> None:
        """Each rank connects to its buddy."""
        run, receiver, here = self._run, None, None
        self._trouble = "its buddy cannot listen"
        try:
            receiver = MirrorReceiver(run.settings.mirror_files[OWN_SLOTS:], _has_room)
            here = own_address(run.settings.master or ("127.0.0.1", 1)), receiver.port, receiver.token.hex()
        except OSError as error:
            say(f"checkpoint.mirror: this rank cannot listen for another one's snapshots: {error}")
        places = run.peers.gather("says where it is mirrored", [here, self._state.whole])
        self._state = replace(self._state, whole=max(whole for _, whole in places))
        sender, (there, _) = None, places[(run.rank + run.settings.pod) % run.world]
        if there is not None:
            try:
                sender = MirrorSender((there[0], there[1]), bytes.fromhex(there[2]))
            except LinkBroken as error:
                self._trouble = str(error)
        if receiver is not None:
            self._link = _Link(receiver, sender)

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link:
            link.close()

    # One snapshot.

    def _taken(self, slot: int) -> str:
        """Copies a snapshot and has it sent, or begins to; returns why that is impossible."""
        run, path = self._run, self._run.settings.mirror_files[slot]
        self._sent = queue.SimpleQueue()
        if not self._link or not self._link.sender:
            return self._trouble
        try:
            point = safe_point(run, run.settings.run or 0, run.rank, self._generators)
            staged, label = point.image(run, alike=())
            if not _has_room(max(0, staged.size - path.stat().st_size)):
                return f"there is no memory for {staged.size / 2**20:.0f} MiB"
            fill = partial(self._fill, label, slot, self._link.sender, self._sent)
            found = self._deferral.copy(staged, fill, trains=True)
        except Exception as error:  # noqa: BLE001 - of a script's own object: training is worth more
            return f"its state cannot be copied: {in_words(error)}"
        return found.why if isinstance(found, NoCopy) else ""

    def _fill(
        self,
        label: Label,
        slot: int,
        sender: MirrorSender,
        sent: queue.SimpleQueue[str],
        staged: Staged,
        *,
        whole: str = "",
    ) -> Path:
        """Writes the snapshot, and has a thread send it. StateChanged if it has another checksum than `whole`."""
        path, total = self._run.settings.mirror_files[slot], _Total()
        self._made.pop(slot, None)
        summed = replace(staged, pieces=lambda: map(total.add, staged.pieces()))
        if not write_image(path, label, summed, lambda: whole in ("", f"{total.crc:016x}")):
            raise StateChanged("the state has changed, or has got other memory, while it was copied")
        self._made[slot] = label.stamp
        threading.Thread(target=_send, args=(sender, slot, path, sent), name="perdure-mirror-send", daemon=True).start()
        return path

    def _agree(self) -> None:
        """Hears whether all ranks' parts of the last snapshot are at their buddies. Waits for this rank's."""
        run, step = self._run, self._state.taken_at
        if self._deferral.copies:
            found = self._deferral.found()
            self._why = found.why if isinstance(found, NoCopy) else self._why
        why = self._why or self._sent.get()
        said = run.peers.gather("has mirrored its part", [self._state.whole, why])
        was_whole = self._state.whole
        self._state = agreed(self._state, [MirrorWord(whole, not one) for whole, one in said])
        if self._state.whole > was_whole:
            most = 2 * self._state.every - 1
            steps = f"{most} finished steps" if most > 1 else "one finished step"
            self._say(f"all parts are mirrored: a member that dies costs {steps} at most")
            return
        self._disconnect()
        for rank, (_, one) in enumerate(said):
            if one:
                self._say(f"step {step} is not mirrored: rank {rank}: {one}")

    def _say(self, words: str) -> None:
        """Says it once, on rank 0."""
        if self._run.rank == 0 and words != self._said:
            self._said = words
            say(words)


def _send(sender: MirrorSender, slot: int, path: Path, sent: queue.SimpleQueue[str]) -> None:
    why = "it was interrupted"
    try:
        sender.send(slot, path)
        why = ""
    except LinkBroken as error:
        why = str(error)
    finally:
        sent.put(why)


def _has_room(grows_by: int) -> bool:
    room = free_memory()
    return room is None or grows_by + MARGIN_BYTES <= room
