"""What an agent tells the operator while its trainer works: one report, its answer, and where reports go.

The agent sends `POST {url}/v1/report`, the report as the body and its pod's token as the bearer. The operator answers
200 with an `Answer`, or any other status: then the agent tries again later. Where reports go is a `Channel`, which the
operator writes into an annotation of the pod; a pod without one has an operator that takes no reports.

A report is evidence for people and for what may wait: nothing is committed or deleted because of one. A container
writes it, so it may hold any bytes: texts are cut and lose their control characters when they are read. Unknown fields
are ignored, and an unknown phase is None, because agents live in users' images for weeks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from perdure.wire.account import RunAccount, read_accounts, write_accounts
from perdure.wire.codec import Amount, Natural, Positive, fits, from_json, read_amount
from perdure.wire.reading import VERSION, ContractError, document
from perdure.wire.scaling import ScalingHints, read_scaling, write_scaling
from perdure.wire.truncation import fitting, shortened

REPORT_PATH: Final = "/v1/report"
"""Follows the channel's URL."""
REPORT_BYTES: Final = 2048
"""No report is longer, as JSON."""
ANSWER_BYTES: Final = 1024
"""No answer is longer; an agent reads no more."""
CHANNEL_BYTES: Final = 32768
"""No annotation with a channel is longer: a bundle holds the certificates of an old and of a new authority."""
SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0
"""The bounds of the time between two reports."""
REASON_CHARACTERS: Final = 160
"""The length of a reason in a report."""
VALUES_KEPT: Final = 8
"""Values of the script in a report."""
VALUE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,31}")
"""The name of such a value; one with another name is left out."""

_REASON_BYTES: Final = 420
"""Size limit of the reason once JSON has escaped it: an escaped character has at most twelve bytes."""
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+")
"""What moves a cursor, begins a line, changes the direction of a text, cannot be seen or cannot be encoded."""


class TrainerPhase(StrEnum):
    """What a pod's trainer is busy with."""

    STANDBY = "standby"  # the pod waits for an assignment, and may still import
    IMPORTING = "importing"  # the script runs, and has no Session yet
    CONNECTING = "connecting"  # its ranks look for each other, and open the run
    RESTORING = "restoring"  # the run is open, and its state is being read
    TRAINING = "training"
    SAVING = "saving"  # training waits for a save
    EVALUATING = "evaluating"
    HANDING_OVER = "handing-over"  # members change while the processes live
    LEAVING = "leaving"  # the trainer saves to leave, ends, or has ended


class HandoverAct(StrEnum):
    """How far a pod's trainer is in a live hand-over that it was offered."""

    CONNECTING = "connecting"  # it trains on, while old and new members connect
    MOVING = "moving"  # its ranks stand, and their state goes to the new members
    VOTING = "voting"  # it has voted, or is about to: from here on the log knows the result


class DeathCost(StrEnum):
    """What the death of any one member costs now, as far as its training can tell."""

    NO_STEP = "no-step"  # no finished step: the others hold what it held
    STEPS = "steps"  # finished steps, up to a number that is told beside it
    SINCE_COMMIT = "since-commit"  # all steps since the newest commit
    UNTIL_MIRRORED = "since-commit-until-mirrored"  # the same, until all parts are mirrored


class Standing(StrEnum):
    """In which kind of place a trainer that makes no progress stands."""

    WAITS_FOR_RANKS = "waits-for-ranks"  # in a call that other ranks have to make, too
    RUNS = "runs"  # it takes CPU time
    STANDS = "stands"  # it takes none, and is in no call that is known to wait for ranks


def _phase(value: Any) -> TrainerPhase | None:
    """The phase; None for the word of a newer agent."""
    try:
        return TrainerPhase(value)
    except ValueError:
        return None


def _act(value: Any) -> HandoverAct | None:
    """The act; None for the word of a newer agent."""
    try:
        return HandoverAct(value)
    except ValueError:
        return None


def read_death_cost(value: Any) -> DeathCost | None:
    """What a death costs; None for the word of a newer version."""
    try:
        return DeathCost(value)
    except ValueError:
        return None


def _standing(value: Any) -> Standing | None:
    """The kind of place; None for the word of a newer agent."""
    try:
        return Standing(value)
    except ValueError:
        return None


def _start(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{8,64}", value):
        raise TypeError(f"{str(value)[:80]!r} is not 8 to 64 hexadecimal digits")
    return value


def _share(value: Any) -> float:
    return min(1.0, read_amount(value))


def _reason(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:80]!r} is not a string")
    return _CONTROLS.sub(" ", shortened(value, REASON_CHARACTERS))


def read_values(values: Any) -> dict[str, float]:
    """Of the values of a script the numbers with a short plain name, at most VALUES_KEPT of them, to six digits.

    The rest is left out, because scripts report anything, and a newer agent perhaps more.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{str(values)[:80]!r} is not an object")
    numbers = {name: _number(value) for name, value in values.items() if VALUE_NAME.fullmatch(str(name))}
    known = [(str(name), number) for name, number in numbers.items() if number is not None]
    return dict(known[:VALUES_KEPT])


def _number(value: Any) -> float | None:
    """A finite number of six digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(f"{value:.6g}")
    except OverflowError:  # an integer beyond any float
        return None
    return number if math.isfinite(number) else None


_Share = Annotated[float, _share]
"""From 0 to 1."""
_Reason = Annotated[str, _reason]
"""One short line for people, without control characters."""


@dataclass(frozen=True)
class Report:
    """The progress of one pod's training. What is unknown is None, or an empty text."""

    start: Annotated[str, _start]
    """Names one start of the pod's agent: hexadecimal digits drawn at random."""
    sequence: Positive
    """Rises with each report of that start."""
    phase: Annotated[TrainerPhase | None, _phase] = None
    """None: the agent is newer than this reader, and has a phase that this one does not know."""
    run: Natural | None = None
    """The run that the pod's trainer trains, or was assigned; None for a standby."""
    rank: Natural | None = None
    """The pod's first rank in that run."""
    step: Natural | None = None
    """Optimizer steps done."""
    epoch: Natural | None = None
    """Epochs finished."""
    samples_per_second: Amount | None = None
    """Samples per second of all ranks together, over the last seconds."""
    step_seconds: Amount | None = None
    """Seconds from one step to the next, over the last seconds."""
    commit_step: Natural | None = None
    """The step of the newest commit that the pod knows."""
    commit_at: Amount | None = None
    """When the pod heard of it, as Unix time."""
    save_stall_seconds: Amount | None = None
    """How long training stood still for the newest periodic save: what a shorter period of saves would cost."""
    store_failing_since: Amount | None = None
    """When the first of the saves failed that have failed in a row, as Unix time; None: the newest one succeeded."""
    store_why: _Reason = ""
    """Why the newest of them failed."""
    required_grace_seconds: Amount | None = None
    """An estimate of what a save takes that begins now, by what the newest one took: how much time a notice has to
    leave. In status, and in what `what-if drain` foretells."""
    live: bool | None = None
    """Whether members of this script can change live. In status, and in what `what-if drain` foretells; the operator
    itself offers a live move until the script has refused one."""
    live_why: _Reason = ""
    """Why they cannot."""
    progress: _Share | None = None
    """The part of the script's present loop of epochs that is done, where its end is known."""
    remaining_seconds: Amount | None = None
    """An estimate of the seconds to that end."""
    death_cost: Annotated[DeathCost | None, read_death_cost] = None
    """What the death of any one member costs now."""
    death_steps: Natural | None = None
    """At most so many finished steps; only with DeathCost.STEPS."""
    hangs_since: Amount | None = None
    """Since when a process of the trainer makes no progress, as Unix time, once that has lasted for longer than its
    phase allows; None: each makes some."""
    hangs_in: Annotated[Standing | None, _standing] = None
    """Where it stands. Of several processes, one that waits for no rank; None if that is not known of each."""
    hang_may_be_work: bool | None = None
    """Whether a process that hangs may also be at work for long, as in an evaluation without its session; None: it does
    not hang, or its version does not tell."""
    watched: bool | None = None
    """Whether each process of the trainer looks at itself, and so would say that it hangs; None: its version does not
    tell."""
    own_share: _Share | None = None
    """The part of the time of its steps in which the pod's slowest process works itself, or waits for its data, and
    not for other ranks; None if that is not known of each."""
    handover_act: Annotated[HandoverAct | None, _act] = None
    """How far it is in a live hand-over; None while none is offered to it."""
    data_share: _Share | None = None
    """The part of the time of its steps in which one of the pod's processes, the one that waits longest, waits for its
    data; None if that is not known of each. It is a part of that process's own time."""
    values: Annotated[Mapping[str, float], read_values] = field(default_factory=dict)
    """The newest values that rank 0's script has reported, by name; only rank 0's pod has any. A name is the script's
    own word: people see them, and no label of a metric is made of them."""
    batch: Natural | None = None
    """Samples in a step of all ranks together, where the session chooses them. Only rank 0's pod tells."""
    scaling: Annotated[ScalingHints | None, read_scaling] = None
    """What its script has measured of its speed and its gradient; None also if a field of it is not in its range.
    Only rank 0's pod tells. A lie can win its job more of its pool than is fair, and nothing else."""
    accounts: Annotated[tuple[RunAccount, ...], read_accounts] = ()
    """What the pod's first process did with its time in the newest runs, oldest first. The last one goes on to this
    report. Fewer where the rest of the report needs the room."""


@dataclass(frozen=True)
class ReportAnswer:
    """What the operator says to a report that it took."""

    next_seconds: Amount
    """When the next one should come, from this answer on."""


@dataclass(frozen=True)
class Channel:
    """Where a pod's reports go."""

    url: str
    """https://host:port, without a path."""
    ca: str
    """The certificates in PEM that the server's own is checked with, and no others."""


def write_report(report: Report) -> str:
    """The body of a request: compact JSON of at most REPORT_BYTES, without what is unknown.

    A number that no reader takes is left out, because a script may compute any: NaN, infinite, negative or too large.
    Where all does not fit, accounts give way first, the older one before the newer, and then the script's values, the
    last one first. All else has room.
    """
    body: dict[str, Any] = {"v": VERSION}
    for name, value in asdict(report).items():
        if isinstance(value, int | float) and not fits(value):
            continue
        if isinstance(value, float):
            body[name] = round(value, 3)
        elif name in ("store_why", "live_why"):
            body[name] = _CONTROLS.sub(" ", fitting(_reason(value), _REASON_BYTES))
        else:
            body[name] = value
    body["values"] = values = read_values(report.values)
    body["scaling"] = write_scaling(report.scaling) if report.scaling else None
    del body["accounts"]
    while len(text := _compact(known := {name: value for name, value in body.items() if _says(value)})) > REPORT_BYTES:
        values.popitem()
    accounts = write_accounts(report.accounts, REPORT_BYTES - len(text) - len(',"accounts":'))
    return _compact({**known, "accounts": accounts}) if accounts else text


def _says(value: Any) -> bool:
    return value not in (None, "", [], {})


def read_report(text: str) -> Report:
    """The report in a body. Raises ContractError, or UnsupportedVersion for another major version."""
    return from_json(Report, document("report", text))


def write_answer(answer: ReportAnswer) -> str:
    """The body of an answer."""
    return _compact({"v": VERSION, **asdict(answer)})


def read_answer(text: str) -> ReportAnswer:
    """The answer in a body, its time within the bounds. Raises ContractError or UnsupportedVersion."""
    answer = from_json(ReportAnswer, document("answer to a report", text))
    return ReportAnswer(min(LONGEST_SECONDS, max(SHORTEST_SECONDS, answer.next_seconds)))


def write_channel(channel: Channel) -> str:
    """The annotation's text. Raises ContractError for what an agent would not read."""
    text = _compact({"v": VERSION, **asdict(channel)})
    read_channel(text)
    return text


def read_channel(text: str) -> Channel:
    """The channel in an annotation. Raises ContractError or UnsupportedVersion."""
    if len(text) > CHANNEL_BYTES:
        raise ContractError(f"channel of reports: longer than {CHANNEL_BYTES} bytes")
    channel = from_json(Channel, document("channel of reports", text))
    if not re.fullmatch(r"https://[A-Za-z0-9.\-\[\]:]+:[0-9]{1,5}", channel.url):
        raise ContractError(f"channel of reports: {channel.url[:80]!r} is not https://host:port")
    return channel


def _compact(body: Mapping[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))
