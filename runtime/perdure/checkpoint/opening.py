"""Opens a run in the log, all ranks together: rank 0 tries until it is the run's turn.

Called once by the session's `restore`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from perdure.checkpoint.history import find
from perdure.checkpoint.load import Receiver, load
from perdure.checkpoint.reading import reading
from perdure.checkpoint.state import Loaded
from perdure.console import Trouble, say
from perdure.errors import Corrupt, StorageError, StorageRefused
from perdure.group.collectives import on_rank0
from perdure.group.peers import Peers
from perdure.log.entry import ImageRef, Origin
from perdure.log.images import ImageOffer
from perdure.log.reader import Log, Slot
from perdure.log.writer import NotYet, Resume, Writer
from perdure.store import Store, open_origin
from perdure.wire.codec import from_json
from perdure.wire.settings import Member, Settings

ASK_AGAIN_SECONDS: Final = 0.2
STORE_AGAIN_SECONDS: Final = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class Opening:
    """The run is open."""

    run: int
    opened: int
    """The highest run number in the log."""
    goal: Any
    """The goal that an earlier run reached, or None."""
    writer: Writer | None
    """On rank 0."""
    image: ImageRef | None = None
    """The image that it begins from instead of the newest commit."""
    rescued: int = 0
    """Steps from the newest commit behind that image to it: commits beyond it could not be used."""
    origin: Origin | None = None
    """The commit of another root that it begins from."""


def open_run(
    settings: Settings, store: Store, peers: Peers, give_up: Callable[[], None], images: Sequence[ImageOffer] = ()
) -> Opening:
    """Wait until Opened is in the log. Raises Fenced, RootTakenOver or LogLost if this run may not open.

    `images` are those of all ranks.
    """
    writer = writer_of(settings, store) if peers.rank == 0 else None

    def act() -> dict[str, Any]:
        return _report(_wait_for_turn(writer, settings, give_up, images, members)) if writer else {}

    # a rank of a newer version may say more of itself
    members = [from_json(Member, found) for found in peers.gather("meets the others", asdict(settings.member))]
    report = on_rank0(peers, "opens its run", act)
    image = ImageRef(**report["image"]) if report["image"] else None
    rescued = image.step - report["committed"] if image else 0
    origin = Origin(**report["origin"]) if report["origin"] else None
    return Opening(report["run"], report["run"], report["goal"], writer, image, rescued, origin)


def writer_of(settings: Settings, store: Store) -> Writer:
    """The log writer of rank 0 for the run of these settings."""
    return Writer(
        Log(store),
        uid=settings.uid,
        run=settings.run,
        lost=settings.lost,
        floor=settings.floor,
        resume_from=settings.resume_from,
        find=lambda wish: find(_root_of(wish.uri, store), wish.wanted).commit.seq,
    )


def _root_of(uri: str | None, own: Store) -> Store:
    return open_origin(uri, os.environ) if uri else own


def _report(resume: Resume) -> dict[str, Any]:
    """What all ranks need to know, as JSON. Logs the rest."""
    for skipped in resume.skipped:
        say(f"log: {skipped}")
    if resume.returns:
        say("goes back to the requested commit; newer ones in this root are no longer part of the training")
    if resume.no_image:
        say(f"the newest commit counts: {resume.no_image}")
    goal = resume.completed.goal if resume.completed else None
    body = {"run": resume.run, "goal": goal, "origin": asdict(resume.origin) if resume.origin else None}
    if resume.image is None:
        return {**body, "image": None}
    committed = resume.commits.step_below(resume.image.step)
    return {**body, "image": asdict(resume.image), "committed": committed}


def _wait_for_turn(
    writer: Writer,
    settings: Settings,
    give_up: Callable[[], None],
    images: Sequence[ImageOffer],
    members: Sequence[Member],
) -> Resume:
    begun, said, trouble = time.monotonic(), "", Trouble()
    waits_from = _waits_from(settings, begun)
    while True:
        give_up()
        now = time.monotonic()
        try:
            wait_over = now - waits_from >= settings.wait
            answer = writer.try_open(settings.world, wait_over=wait_over, images=images, members=members)
        except StorageRefused:
            raise
        except StorageError as error:
            if now - begun >= settings.rendezvous:
                raise
            trouble.say(f"the log cannot be opened, trying again: {error}")
            time.sleep(STORE_AGAIN_SECONDS)
            continue
        if isinstance(answer, Resume):
            return answer
        said = _say_once(answer, said)
        time.sleep(ASK_AGAIN_SECONDS)


def _waits_from(settings: Settings, begun: float) -> float:
    """When the wait for the previous run begins; `begun` is when all ranks had met.

    Newcomers of a live hand-over may have been warm for long when it fails, and only then the older run begins to save.
    """
    return begun if settings.handover else settings.started or begun


def _say_once(answer: NotYet, said: str) -> str:
    if answer.reason != said:
        say(f"waiting to open the log: {answer.reason}")
    return answer.reason


def load_newest(
    settings: Settings, store: Store, peers: Peers, writer: Writer | None, into: Receiver | None = None
) -> Loaded | None:
    """Load the newest usable commit on all ranks, into the tensors of `into`; None if there never was a commit."""
    return _load(settings, store, peers, lambda: writer.commits() if writer else None, into)


def load_origin(settings: Settings, own: Store, peers: Peers, origin: Origin, into: Receiver) -> Loaded:
    """Load the commit of another root, or an earlier one of this, in the same way. Raises Corrupt if it is damaged."""
    store = _root_of(origin.uri, own)
    with reading(store, origin.seq) if peers.rank == 0 else nullcontext():
        loaded = _load(settings, store, peers, lambda: [Log(store).linked(origin.seq)], into)
    if loaded is None:
        raise Corrupt(f"entry {origin.seq} of {origin.uri} is no longer a commit: restore it there")
    return loaded


def _load(
    settings: Settings,
    store: Store,
    peers: Peers,
    commits: Callable[[], Iterable[Slot] | None],
    into: Receiver | None,
) -> Loaded | None:
    failing: float | None = None  # since when: a load may have taken longer than the limit before it failed
    trouble = Trouble()
    while True:
        try:
            loaded = load(store, peers, commits() if peers.rank == 0 else None, into)
        except StorageRefused:
            raise
        except StorageError as error:
            now = time.monotonic()
            since = failing = now if failing is None else failing
            if _gives_up(peers, now - since, settings.rendezvous):
                raise
            trouble.say(f"the checkpoint cannot be read, trying again: {error}")
            time.sleep(STORE_AGAIN_SECONDS)
        else:
            if peers.rank == 0:
                _say_where_from(loaded, store.uri)
            return loaded


def _gives_up(peers: Peers, seconds: float, limit: float) -> bool:
    """All ranks decide by rank 0's clock, so that none continues alone."""
    return bool(on_rank0(peers, "reads a checkpoint again", lambda: seconds >= limit))


def _say_where_from(loaded: Loaded | None, root: str) -> None:
    if loaded is None:
        say(f"starting fresh at {root}, step 0")
        return
    for skipped in loaded.skipped:
        say(f"skipped {skipped}")
    ranks = "1 rank" if loaded.world == 1 else f"{loaded.world} ranks"
    commit = loaded.commit
    say(f"resumed from commit {commit.seq}, step {commit.step}, made {loaded.made} by {ranks}, at {root}")
