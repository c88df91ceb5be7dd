"""One entry of the log: its fields, its JSON text, its key. Pure values; see perdure.log.reader for the rules.

Entries are never rewritten or deleted, so every later version reads what is written here. Fields may be added, readers
ignore those that they do not know, and a change of meaning is a new `version`. In every version the last field is
`crc`, the checksum of the text without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from awscrt.checksums import crc64nvme

from perdure.errors import Corrupt, UserError

FORMAT: Final = 1
"""`version` of entries and manifests."""
ENTRY_BYTES: Final = 4096
REASON_CHARACTERS: Final = 200
PREFIX: Final = "log/"
_PINNING: Final = frozenset({"pin", "pins", "released"})
_TOP: Final = 10**16 - 1
_SEAL: Final = re.compile(rb',"crc":"([0-9a-f]{16})"}\Z')
_KEY: Final = re.compile(r"log/(\d{16})\.json")


@dataclass(frozen=True)
class ObjectRef:
    """Where an object is, and the size and checksum of its bytes."""

    key: str
    size: int
    crc: str


@dataclass(frozen=True)
class ManifestRef(ObjectRef):
    """The reference to a commit's manifest."""

    @property
    def folder(self) -> str:
        """The prefix of everything that belongs to the commit."""
        return self.key.rpartition("/")[0] + "/"


@dataclass(frozen=True)
class ImageRef:
    """A position of a lost run that its survivors have kept as an image."""

    run: int
    step: int


@dataclass(frozen=True)
class Origin:
    """Where a run begins by a user's or a script's choice."""

    wish: str
    """The words of the choice: the same choice is made only once."""
    seq: int
    """The number of the commit's entry."""
    uri: str | None = None
    """The root that it is in; None: this one."""
    bypasses: int | None = None
    """The newest commit of this root before the choice. It, and the commits above the chosen one, are not part of the
    training."""


@dataclass(frozen=True)
class Opened:
    """A run begins with `world` ranks. `resumes` is the newest commit at that moment, or the chosen one.

    With `takes_over` this entry is a live hand-over: that run was alive, and continues as this one from `step`. With
    `image` the run begins at that place, after that commit, and its first commit will hold it. `members` is the object
    that says where each rank ran when it began (perdure.log.members).
    """

    world: int
    resumes: int | None
    takes_over: int | None = None
    step: int | None = None
    image: ImageRef | None = None
    members: ObjectRef | None = None
    origin: Origin | None = None


@dataclass(frozen=True)
class Refused:
    """Run `refuses` may never take over the run of this entry, nor open at all; the run continues."""

    refuses: int


@dataclass(frozen=True)
class Committed:
    """A checkpoint is complete; with `final` the run is closed."""

    step: int
    epoch: int
    cursors: Mapping[str, Any]
    final: bool
    reason: str
    manifest: ManifestRef
    pin: str | None = None
    """The pin that this commit gets."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """Which commits have the other pins: see perdure.log.pins."""
    released: tuple[int, ...] = ()
    """Commits that have lost their pin, and that retention has not handled yet."""


@dataclass(frozen=True)
class Closed:
    """The run is closed without its own commit."""

    outcome: str


@dataclass(frozen=True)
class Completed:
    """The goal is reached."""

    goal: Any
    step: int
    epoch: int


Event = Opened | Refused | Committed | Closed | Completed


@dataclass(frozen=True)
class Entry:
    """What a writer appended: the event and its place in the chain."""

    seq: int
    prev: str | None
    """Checksum of the bytes of entry seq-1."""
    uid: str
    run: int
    writer: str
    last_commit: int | None
    """Seq of the newest Committed before this entry, without those that a chosen origin bypasses."""
    last_opened: int | None
    """Seq of the newest Opened before this entry: finds the runs of a uid without reading every commit."""
    time: str
    """For people; nothing compares it."""
    event: Event
    aborted: int = 0
    """The highest run whose hand-over was aborted, as far as this run's writer knows: no run up to it may open."""

    @property
    def refused(self) -> int:
        """No run up to this number may open after this entry."""
        return max(self.aborted, self.event.refuses) if isinstance(self.event, Refused) else self.aborted

    @property
    def newest_commit(self) -> int | None:
        """Seq of the newest Committed up to and including this entry."""
        return self.seq if isinstance(self.event, Committed) else self.last_commit

    @property
    def newest_opened(self) -> int | None:
        """Seq of the newest Opened up to and including this entry."""
        return self.seq if isinstance(self.event, Opened) else self.last_opened

    @property
    def ends_run(self) -> bool:
        """Whether nothing of this entry's run comes after it."""
        match self.event:
            case Committed(final=final):
                return final
            case Closed() | Completed():
                return True
            case Opened() | Refused():
                return False


def key_of(seq: int) -> str:
    """Inverted, so that the newest entry is the first of a listing."""
    return f"{PREFIX}{_TOP - seq:016d}.json"


def seq_of(key: str) -> int | None:
    """The entry's number; None for a foreign key."""
    found = _KEY.fullmatch(key)
    return _TOP - int(found[1]) if found else None


def checksum(data: bytes | memoryview) -> str:
    """CRC64NVME, 16 hex digits."""
    return f"{crc64nvme(data):016x}"


def write_entry(entry: Entry) -> bytes:
    """The entry's exact bytes. UserError if they are more than ENTRY_BYTES."""
    body: dict[str, Any] = {"kind": type(entry.event).__name__, "seq": entry.seq, "prev": entry.prev}
    body |= {"uid": entry.uid, "run": entry.run, "writer": entry.writer}
    body |= {"lastCommit": entry.last_commit, "lastOpened": entry.last_opened, "version": FORMAT, "time": entry.time}
    try:
        text = json.dumps({**body, **_fields(entry)}, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UserError(f"log entry {entry.seq} is not plain JSON: {error}: check cursors and goal") from error
    data = _seal(text)
    if len(data) > ENTRY_BYTES:
        raise UserError(
            f"log entry {entry.seq} would have {len(data)} bytes, at most {ENTRY_BYTES} are allowed: "
            f"keep cursors small and put big state into registered objects"
        )
    return data


def read_entry(seq: int, data: bytes) -> Entry:
    """The entry in these bytes. Corrupt if they have changed since they were written; UserError if a newer Perdure
    wrote them.

    The checksum is checked first, so that a flipped bit cannot pass for another version.
    """
    _check_seal(seq, data)
    try:
        body = json.loads(data)
        version = int(body["version"])
        if version > FORMAT:
            raise UserError(f"log entry {seq} has version {version}, this Perdure knows {FORMAT}: use a newer Perdure")
        if body["seq"] != seq:
            raise Corrupt(f"log entry {seq} says that it is number {body['seq']!r}")
        return Entry(
            seq=seq,
            prev=body["prev"],
            uid=str(body["uid"]),
            run=int(body["run"]),
            writer=str(body["writer"]),
            last_commit=_seq_below(seq, body["lastCommit"]),
            last_opened=_seq_below(seq, body["lastOpened"]),
            time=str(body["time"]),
            event=_event(body),
            aborted=int(body.get("aborted", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"log entry {seq} cannot be read: {error!r}") from error


def _fields(entry: Entry) -> dict[str, Any]:
    """The fields of the entry's kind. Fields of later versions are left out where they have no value."""
    match entry.event:
        case Opened(world, resumes, takes_over, step, image, members, origin):
            fields: dict[str, Any] = {"world": world, "resumes": resumes}
            fields |= {} if takes_over is None else {"takesOver": takes_over, "step": step}
            fields |= {} if image is None else {"image": asdict(image)}
            fields |= {} if members is None else {"members": asdict(members)}
            fields |= {} if origin is None else {"from": {k: v for k, v in asdict(origin).items() if v is not None}}
        case Committed() as event:
            fields = {name: value for name, value in asdict(event).items() if value or name not in _PINNING}
        case event:
            fields = asdict(event)
    return {**fields, "aborted": entry.aborted} if entry.aborted else fields


def _seal(text: bytes) -> bytes:
    """The entry's JSON with its own checksum as the last field."""
    return text[:-1] + b',"crc":"' + checksum(text).encode() + b'"}'


def _check_seal(seq: int, data: bytes) -> None:
    found = _SEAL.search(data)
    if not found:
        raise Corrupt(f"log entry {seq} does not end with its checksum: it is torn, or no entry")
    expected, now = found[1].decode(), checksum(data[: found.start()] + b"}")
    if now != expected:
        raise Corrupt(f"log entry {seq} was changed after it was written: its checksum is {now}, it says {expected}")


def _event(body: Mapping[str, Any]) -> Event:
    match body["kind"]:
        case "Opened":
            taken, image, found = body.get("takesOver"), body.get("image"), body.get("members")
            members = ObjectRef(str(found["key"]), int(found["size"]), str(found["crc"])) if found else None
            if taken is not None:
                return Opened(int(body["world"]), body["resumes"], int(taken), int(body["step"]), members=members)
            begun = ImageRef(int(image["run"]), int(image["step"])) if image else None
            origin = _origin(body)
            return Opened(int(body["world"]), body["resumes"], image=begun, members=members, origin=origin)
        case "Refused":
            return Refused(int(body["refuses"]))
        case "Committed":
            ref = body["manifest"]
            manifest = ManifestRef(str(ref["key"]), int(ref["size"]), str(ref["crc"]))
            step, epoch, reason = int(body["step"]), int(body["epoch"]), str(body["reason"])
            committed = Committed(step, epoch, dict(body["cursors"]), bool(body["final"]), reason, manifest)
            return _pinned(committed, body)
        case "Closed":
            return Closed(str(body["outcome"]))
        case "Completed":
            return Completed(body["goal"], int(body["step"]), int(body["epoch"]))
    raise ValueError(f"unknown kind {body['kind']!r}")


def _origin(body: Mapping[str, Any]) -> Origin | None:
    found = body.get("from")
    if found is None:
        return None
    bypasses = _seq_below(int(body["seq"]), found.get("bypasses"))
    uri = None if found.get("uri") is None else str(found["uri"])
    return Origin(str(found["wish"]), int(found["seq"]), uri, bypasses)


def _pinned(committed: Committed, body: Mapping[str, Any]) -> Committed:
    seq = int(body["seq"])
    pin = None if body.get("pin") is None else str(body["pin"])
    pins = {str(name): int(_seq_below(seq, at) or 0) for name, at in body.get("pins", {}).items()}
    released = tuple(int(_seq_below(seq, at) or 0) for at in body.get("released", []))
    return replace(committed, pin=pin, pins=pins, released=released)


def _seq_below(seq: int, value: Any) -> int | None:
    """A link must lead to a lower number, so that a damaged one cannot lead a reader in a circle."""
    if value is None:
        return None
    if not 0 < int(value) < seq:
        raise ValueError(f"it points to entry {value}")
    return int(value)
