"""Per-rank state in a hand-over: accumulators, random generators, and states that a script merges.

Old rank 0 gathers that of all old ranks for the header. In a newer run of the same size a newcomer continues with what
its predecessor had. In one of another size each rank merges the old ranks' states, and derives its generators: from its
rank, or from its share of a batch (perdure.state.rng). Used by perdure.live.effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.checkpoint.codec import decode, encode
from perdure.checkpoint.state import RankState
from perdure.group.collectives import on_all
from perdure.live.header import Header
from perdure.live.protocol.parties import Attempt, Party, PartyRole
from perdure.live.transfer import Placements, shards
from perdure.loop.leaving import check_places, place
from perdure.loop.run import Run
from perdure.state.merging import parts_of, with_own
from perdure.state.rng import alike, apply, capture, derive, elsewhere, sums, unlike_in_shares


@dataclass(frozen=True)
class Gathered:
    """What the old ranks hand over. All but `state` is for the header, encoded, and complete on old rank 0."""

    state: RankState | None
    """This rank's tensors; None if no party receives any."""
    objects: Any
    ranks: Sequence[Any]
    """Each old rank's own state; for a newer run of another size only what all ranks share."""
    alike: tuple[str, ...]
    """The random generators with which all ranks continue alike."""
    accumulators: Sequence[Any]
    """The accumulators of each old rank."""
    parts: Sequence[Mapping[str, Any]]
    """For a newer run of another size: each old rank's states that are merged."""
    shards: Mapping[str, Placements]
    """The sharded tensors, with their placements."""
    alone: Any = None
    """For a newer run of another size: the only old rank's own state."""


class OwnStates:
    """What the ranks have of their own, for one party of an attempt."""

    def __init__(self, run: Run, attempt: Attempt, party: Party) -> None:
        self._run = run
        self._attempt = attempt
        self._party = party
        self._same_size = attempt.world == attempt.new_world
        self._alike: dict[str, Any] = {}
        """Random generators equal on all old ranks, with which a run of another size continues."""
        self._apart: tuple[str, ...] = ()
        """Those in different states on old ranks with the same share of a batch."""
        self._merged: dict[str, Any] = {}
        """On a stayer: the merged states that it continues with."""

    def gather(self) -> Gathered:
        """On an old rank: what a commit made here would hold. Collective over the old ranks. Raises UserError on all
        of them if one cannot hand over what it has."""
        run, same = self._run, self._same_size
        position = run.progress.position()
        drawn = [] if same else [sums(run.progress.generators.state()), run.drawing_place.share]
        held = run.progress.sums.tell()

        def tell(own: Any) -> list[Any]:
            return [place(position), own if same else drawn, held, {} if same else parts_of([own])[0]]

        state, staged, placed = None, None, dict[str, Placements]()
        if self._attempt.tensor_receivers or (run.registry.sharded and not same):
            run.before_save()
            # A single rank may hold what cannot be saved.
            movable, _ = on_all(run.peers, "hands its state over", lambda: (self._movable(run.state()), None))
            state, placed = movable
            staged, found = run.checkpointer.stage_and_tell(state, lambda staged: tell(staged.state))
        else:
            _, found = on_all(run.peers, "hands its place over", lambda: (None, tell(encode(run.registry.own()))))
        places, ranks, accumulators, parts = zip(*found, strict=True)
        check_places(list(places))
        names = run.images.alike if same else self._keep_alike(ranks)
        gathered = Gathered(state, staged and staged.objects, (), names, accumulators, parts, placed)
        if staged is None:
            return gathered
        if same:
            return replace(gathered, ranks=ranks)
        shared = [kept] if (kept := elsewhere(staged.state, names, self._apart)) else []
        return replace(gathered, ranks=shared, alone=staged.state if self._attempt.world == 1 else None)

    def merge(self, header: Header) -> None:
        """On a stayer: make its states in a run of another size. Raises UserError if the script's function fails."""
        self._merged = self._merge(header)

    def of_newcomer(self, header: Header) -> Any:
        """On a newcomer: the per-rank state that it begins with, decoded, or None. Raises UserError as `merge`."""
        rank = self._attempt.predecessor_of(self._party.new or 0)
        own = header.ranks[rank or 0] if header.ranks else None
        own = None if own is None else decode(own)
        return with_own(own, self._merge(header)) if header.parts else own

    def install(self, header: Header) -> None:
        """Give this rank its merged states, and leavers' accumulators to the newcomers in their ranks or to the newer
        run's rank 0."""
        self._run.registry.load_own(self._merged)
        attempt, party, accumulators = self._attempt, self._party, self._run.progress.sums
        rank = attempt.predecessor_of(party.new or 0)
        if party.part is PartyRole.NEWCOMER:
            accumulators.take_place(header.sums[rank] if header.sums and rank is not None else [])
        if party.new == 0 and rank is None and header.sums:
            for leaver in attempt.leavers:
                accumulators.take_over(header.sums[leaver])

    def derive_generators(self) -> None:
        """Derive this rank's random generators, as in any run of another size than its predecessor."""
        derive(self._run.seed, self._run.progress.step, self._run.drawing_place, self._apart)
        apply(self._alike)
        self._run.images.join(tuple(self._alike))

    def _merge(self, header: Header) -> dict[str, Any]:
        return self._run.registry.merged(header.parts, rank=self._party.new or 0, world=self._attempt.new_world)

    def _movable(self, state: RankState) -> tuple[RankState, dict[str, Placements]]:
        """The state, and its sharded tensors. UserError if one of its tensors cannot go to other ranks."""
        return state, shards(state, self._run.registry.mesh)

    def _keep_alike(self, by_rank: Sequence[tuple[Mapping[str, str], int]]) -> tuple[str, ...]:
        """Keep the generators that are equal on all ranks, and return their names. One rank has nothing to compare, so
        that none is kept. `by_rank`: checksums, and the number of the share of a batch."""
        self._apart = unlike_in_shares(by_rank)
        now = capture() if len(by_rank) > 1 else {}
        self._alike = {name: now[name] for name in alike([drawn for drawn, _ in by_rank]) if name in now}
        return tuple(self._alike)
