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

    def __post_init__(self) -> None:
        """UserError for what can name no commit."""
        given = self.given
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} are given: a commit is named by one of them")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < (name == "seq"):
                raise UserError(f"{name} is {value!r}: give an integer from {int(name == 'seq')}")

    @property
    def given(self) -> dict[str, int]:
        """What is given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return next((f"{name} {value}" for name, value in self.given.items()), "the newest commit")
