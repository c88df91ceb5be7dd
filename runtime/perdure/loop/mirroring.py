"""Mirrors this rank's part of a sharded model in another pod: a death then costs a step, not all since the commit.

perdure.loop.mirror decides when. A snapshot is an image (perdure.checkpoint.image_file) in a file of this pod's agent.
It is copied while training goes on, as a save is (perdure.loop.deferral), and then a thread sends it to the buddy: the
rank with the same number in another pod (perdure.loop.buddies). So after a death the survivors' agents have all parts,
and nothing has to be written any more.

Called by perdure.session.boundary; perdure.loop.survivor_snapshots tells the agent what is there.
"""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.background.arena import StateChanged
from perdure.checkpoint.image_file import Label, write_image
from perdure.checkpoint.upload import Staged
from perdure.console import say
from perdure.errors import in_words
from perdure.group.mirror_link import LinkBroken, MirrorReceiver, MirrorSender, allocated, own_address
from perdure.host.memory import free_memory, missing_together
from perdure.log.images import Stamp
from perdure.loop.buddies import buddies, on_own_node
from perdure.loop.death_cost import MirrorGuard
from perdure.loop.deferral import Deferral, NoCopy
from perdure.loop.mirror import MirrorState, MirrorWord, agreed, is_due, must_agree, renewed, taken
from perdure.loop.requests import Requests
from perdure.loop.safe_point import MARGIN_BYTES, SnapshotSource, safe_point
from perdure.loop.survivor_snapshots import SurvivorSnapshots
from perdure.state.numpy_random import NumpyGenerator
from perdure.state.python_random import PythonGenerator
from perdure.state.rng import Reading

LOOK_SECONDS: Final = 0.2
"""How often a rank that waits for its snapshot's delivery looks whether it is to leave."""
OWN_SLOTS: Final = 2
"""The first of the agent's files for a mirror are for this rank's own snapshots, the others for another rank's."""
_NODE: Final = 3
"""Where a rank's node is in what it tells, behind its address, port and token."""


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


class MirroredRun(SnapshotSource, Protocol):
    """What a mirror needs of a Run."""

    requests: Requests
    images: SurvivorSnapshots


class Mirror:
    """For one process. Called in the main thread."""

    def __init__(self, run: MirroredRun) -> None:
        self._run = run
        self._state = MirrorState(0)
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
        self._said = set[str]()

    @property
    def newest(self) -> Stamp | None:
        """Of the newest snapshot in this rank's slots. From any thread."""
        return max(tuple(self._made.values()), key=lambda stamp: stamp.place, default=None)

    @property
    def guard(self) -> MirrorGuard | None:
        """What the mirror is good for at present; None if these ranks have none."""
        known = self._wanted and self._ranks == (self._run.settings.run, self._run.world)
        return MirrorGuard(self._state.most_lost, whole=self._state.bounds) if known else None

    def at_boundary(self, *, trains: bool) -> None:
        """All ranks are at a place where the run may stop: takes the snapshot that is due. Collective.

        `trains`: the script gets a batch to train next. A copy goes on meanwhile.
        """
        if not self._run.images.mirrors or not trains:
            return
        run = self._run
        if self._ranks != (run.settings.run, run.world):
            self._ranks_changed()
        if not self._wanted or not is_due(self._state, run.progress.step):
            return
        if self._link is None and not self._connect():
            return
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

    def renew(self) -> None:
        """The script registers more: what is mirrored, and whether it can be, is looked at again."""
        self.settle()
        self._ranks = None

    def end(self) -> None:
        """This process is no rank any more."""
        self._deferral.end()
        self._disconnect()
        self._wanted = False

    # The ranks.

    def _ranks_changed(self) -> None:
        run = self._run
        self._ranks = run.settings.run, run.world
        if self._deferral.copies:
            self._deferral.found()  # of the ranks before: nobody asks for it any more
        self._disconnect()
        self._state = renewed(replace(self._state, every=run.images.mirrors))
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
        return run.images.obstacle()

    def _connect(self) -> bool:
        """Each rank connects to its buddy. False on all ranks if some pod has no memory for the snapshots."""
        run, receiver, here = self._run, None, None
        self._trouble = "its buddy cannot listen"
        try:
            receiver = MirrorReceiver(run.settings.mirror_files[OWN_SLOTS:], _has_room)
            address = own_address(run.settings.master or ("127.0.0.1", 1))
            here = address, receiver.port, receiver.token.hex(), run.settings.member.node
        except OSError as error:
            say(f"checkpoint.mirror: this rank cannot listen for another one's snapshots: {error}")
        said = run.peers.gather("says where it is mirrored", [here, self._state.whole, self._lacking(), free_memory()])
        self._state = replace(self._state, whole=max(one[1] for one in said))
        if why := _crowded([(lacking, free) for _, _, lacking, free in said], run.settings.pod):
            self._wanted = False
            self._say(f"checkpoint.mirror: nothing is mirrored: {why}")
            if receiver:
                receiver.close()
            return False
        sender, there = None, self._buddy_among([one[0] for one in said])
        if there is not None:
            try:
                sender = MirrorSender((there[0], there[1]), bytes.fromhex(there[2]))
            except LinkBroken as error:
                self._trouble = str(error)
        if receiver is not None:
            self._link = _Link(receiver, sender)
        return True

    def _buddy_among(self, places: Sequence[Sequence[Any] | None]) -> Sequence[Any] | None:
        """Where this rank's buddy listens, if it does. An older version does not tell its node."""
        pod, rank = self._run.settings.pod, self._run.rank
        nodes = [str(place[_NODE]) if place and len(place) > _NODE else "" for place in places[::pod]]
        if shared := on_own_node(nodes):
            self._say(
                f"checkpoint.mirror: {shared} of {len(nodes)} pods are on one node with the pod that mirrors them: if "
                f"that node dies, the newest commit counts"
            )
        return places[buddies(nodes)[rank // pod] * pod + rank % pod]

    def _lacking(self) -> int:
        """The bytes that this rank's slots, and another one's here, will take beyond what they have."""
        held = [boxes.local(tensor) for tensor in self._run.registry.trained()]
        files = self._run.settings.mirror_files
        return max(0, len(files) * sum(map(tensors.size_of, held)) - sum(map(allocated, files)))

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
            if not _has_room(max(0, staged.size - allocated(path))):
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
        path = self._run.settings.mirror_files[slot]
        self._made.pop(slot, None)
        try:
            written = write_image(path, label, staged, lambda: True, whole=whole)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            written = 0
        if not written:
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
        why = self._why or self._delivery()
        said = run.peers.gather("has mirrored its part", [self._state.whole, why])
        was_whole = self._state.whole
        self._state = agreed(self._state, [MirrorWord(whole, not one) for whole, one in said])
        if self._state.whole > was_whole:
            most = self._state.most_lost
            steps = f"{most} finished steps" if most > 1 else "one finished step"
            self._say(f"all parts are mirrored: a member that dies costs {steps} at most")
            return
        self._disconnect()
        for rank, (_, one) in enumerate(said):
            if one:
                self._say(f"step {step} is not mirrored: rank {rank}: {one}")

    def _delivery(self) -> str:
        """Why this rank's part is not at its buddy; "" if it is. Waits for that, but not if this rank is to leave."""
        while not self._run.requests.seen:
            with suppress(queue.Empty):
                return self._sent.get(timeout=LOOK_SECONDS)
        return "it is asked to leave"

    def _say(self, words: str) -> None:
        """Says it once, on rank 0."""
        if self._run.rank == 0 and words not in self._said:
            self._said.add(words)
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


def _crowded(ranks: Sequence[tuple[int, int | None]], pod: int) -> str:
    """Which pod has no memory for what its ranks lack; "" if all have. `ranks` has what each lacks, and sees free."""
    for first in range(0, len(ranks), pod):
        here = ranks[first : first + pod]
        if missing := missing_together([(MARGIN_BYTES, None), *here]):
            lacking = sum(lacking for lacking, _ in here)
            free = lacking + MARGIN_BYTES - missing
            return (
                f"snapshots need {lacking / 2**20:.0f} MiB more in the pod of rank {first}, "
                f"and {free / 2**20:.0f} MiB are left"
            )
    return ""


def _has_room(grows_by: int) -> bool:
    room = free_memory()
    return room is None or grows_by + MARGIN_BYTES <= room
