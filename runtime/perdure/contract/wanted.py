"""Which commit of a root somebody means: by finished epochs, by step, or by its number in the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from perdure.errors import UserError


@dataclass(frozen=True)
class Wanted:
    """One of these, or none: then the newest commit is meant."""

    epoch: int | None = None
    """As many epochs are finished, of all loops, and no further one is begun."""
    step: int | None = None
    """As many optimizer steps are done."""
    seq: int | None = None
    """The number of its entry in the log."""
    pin: str | None = None
    """What it is pinned as."""

    def __post_init__(self) -> None:
        """UserError for what can name no commit."""
        given = self.given
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} are given: a commit is named by one of them")
        if self.pin is not None and not (isinstance(self.pin, str) and self.pin):
            raise UserError(f"pin is {self.pin!r}: give the name of a pin")
        for name, value in given.items():
            if name == "pin":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < (name == "seq"):
                raise UserError(f"{name} is {value!r}: give an integer from {int(name == 'seq')}")

    @property
    def given(self) -> dict[str, int | str]:
        """What is given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return next((f"{name} {value}" for name, value in self.given.items()), "the newest commit")
