"""The few errors Perdure's runtime raises, and what each one means to the code that catches it.

    PerdureError
    ├── UserError        the user must act: the message names the object, the cause and the remedy
    │   └── LogLost        ... the log is older than what is known to have been committed
    ├── Fenced           a newer writer owns the log: stop and write nothing more
    │   ├── RootTakenOver  ... and it belongs to another job: terminal, never retried
    │   └── HandoverRefused  ... or this run's hand-over was aborted: it never opens, a higher one may
    ├── Corrupt          stored bytes are not what was written
    ├── StorageError     the store did not answer, or not as it should: may be tried again
    │   └── StorageRefused ... and will refuse the same call until the cause in the message is fixed
    ├── HandoverFailed   this process should have joined a living run, which continues without it: nothing is lost
    └── PeerLost         another rank is gone or did not answer in time: this rank is not at fault

Nothing here imports torch: the agent and the operator's image use these too.
"""

from __future__ import annotations


class PerdureError(Exception):
    """Base of every error that Perdure raises on purpose."""


class UserError(PerdureError):
    """The user must act; shown without a traceback."""


class LogLost(UserError):
    """The log holds less than is known to have been committed: objects were deleted.

    `found` is the number and the step of the newest commit left; None if none of this job is left.
    """

    def __init__(self, message: str, *, found: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.found = found


class Fenced(PerdureError):
    """Another writer has appended to the log since this one last read it.

    `opened` is the highest run number seen in the log, so the next run can be planned past it.
    """

    def __init__(self, message: str, *, opened: int = 0) -> None:
        super().__init__(message)
        self.opened = opened


class RootTakenOver(Fenced):
    """The log's root now belongs to another job's uid."""


class HandoverFailed(PerdureError):
    """This process was to join a living run and did not: that run continues without it."""


class HandoverRefused(Fenced):
    """The run was to take over a living run, but the log records a refusal: it never opens."""


class Corrupt(PerdureError):
    """Stored bytes do not match their checksum or their format."""


class StorageError(PerdureError):
    """The object store failed; the same call may succeed later."""


class StorageRefused(StorageError):
    """The same call will be refused until the bucket, the keys, the settings or the folder change.

    It is not retried: waiting would only hide the remedy, which the message names.
    """


class PeerLost(PerdureError):
    """A collective failed or timed out because another rank is gone."""


def in_words(error: BaseException) -> str:
    """Text for any error. Python's MemoryError and thread errors carry no message of their own."""
    match error:
        case PerdureError():
            return str(error)
        case MemoryError():
            return "no memory was left: raise the limit of memory, or the size of the machine"
    return repr(error)
