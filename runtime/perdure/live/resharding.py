"""Checks a sharded model in a hand-over, and gives it its shards in a run of another size.

Used by perdure.live.effects. Raises UserError if the script keeps something that cannot move. Communicates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from perdure.checkpoint.background.arena import room_for
from perdure.checkpoint.boxes import is_sharded, meshes_stay, placements_over
from perdure.checkpoint.manifest import SHARED
from perdure.checkpoint.state import RankState
from perdure.errors import UserError, in_words
from perdure.host.memory import free_memory
from perdure.layout.box import Box
from perdure.layout.elastic import ElasticMesh, MeshChange, write_placements
from perdure.layout.sharding import Placement
from perdure.live.header import Header
from perdure.live.liveness import ONE_RANK, UNREGISTERED, hidden_obstacle, obstacle
from perdure.live.protocol.parties import Attempt, Party, PartyRole
from perdure.live.transfer import Key, Place, allocate, mesh_change
from perdure.live.trial import failure
from perdure.loop.run import Run
from perdure.state.fully_sharded import Resharded, ShardMemory, keeps_others, own_divisor, strays


class Resharding:
    """The shards of one party in one attempt."""

    def __init__(self, run: Run, attempt: Attempt, party: Party) -> None:
        self._run = run
        self._attempt = attempt
        self._party = party
        self.obstacle = ""
        """Why this attempt cannot change the ranks, while one to another size might."""
        self._resharded: Resharded | None = None
        """On a stayer, for a newer run of another size: its shards there, if the model is sharded."""
        self._new_shards: dict[str, tuple[Tensor, Tensor, Box]] = {}
        """On such a stayer: each sharded tensor, with its new memory and the box that belongs there."""
        self._placed: set[tuple[tuple[int, ...], tuple[Placement, ...]]] = set()
        """The shapes and placements of the sharded tensors."""
        self._changes: dict[ElasticMesh, MeshChange] = {}
        self._needed: Mapping[str, ShardMemory] = {}
        """What memory the new shards need, as of the main thread's last look."""
        self._memory: dict[str, Tensor] | None = {}
        """Memory that was taken for them before the stop; None once the attempt is over."""

    def prepare(self) -> None:
        """On an old rank, in its main thread: prepare a newer run, for which shards may be others."""
        attempt, registry = self._attempt, self._run.registry
        self._look_at_shards()
        if registry.sharded and (why := failure()):  # here at the latest, because the stop may not wait for it
            self.obstacle = why
            return
        if attempt.world == attempt.new_world:
            return
        if self._run.framework:
            self.obstacle = f"{self._run.framework.name} keeps the number of ranks that it began with"
        if not registry.sharded:
            return
        if 1 in (attempt.world, attempt.new_world):
            self.obstacle = ONE_RANK
            return
        try:
            self.mesh()
            if (factor := own_divisor(registry.sharded_modules)) is not None:
                raise UserError(
                    f"the script divides gradients by {factor:g} (set_gradient_divide_factor), which may stand for the "
                    f"number of ranks: leave it out, so that torch divides by the present number"
                )
            if self._party.new is not None:
                self._resharded = Resharded(registry.sharded_modules, rank=self._party.new, world=attempt.new_world)
                with suppress(UserError):  # all ranks meet this error in the stop, and end the attempt there
                    self._needed = {
                        name: self._resharded.room_for(tensor) for name, tensor in registry.sharded_tensors().items()
                    }
        except Exception as error:  # noqa: BLE001 - whatever another torch does, the training goes on
            self.obstacle = in_words(error)

    def foresee(self) -> None:
        """While training goes on: work out what each kind of tensor will move, because in a large world that takes
        long. Raises nothing: the stop works out whatever is missing."""
        if self._party.part is PartyRole.NEWCOMER:
            self._look_at_shards()
        with suppress(Exception):
            if mesh := self._run.registry.mesh:
                change = self.change(mesh.of(self._attempt.world))
                for shape, placements in filter(all, self._placed):
                    moved, _ = change.of(shape, placements)
                    moved.work_out()

    def take_memory(self) -> None:
        """On a stayer, while training goes on: take the memory for its new shards and touch every page, because page
        faults take longer than the sending. If this container has not that much beside what training needs, the stop
        takes it, when nothing else does."""
        taken, rooms = self._memory, self._needed.values()
        if taken is None or any(room.device.type != "cpu" for room in rooms):  # of a device only the stop knows
            return
        if room_for(sum(room.size for room in rooms) * self._run.settings.pod):  # all ranks of the pod ask now
            return
        with suppress(UserError):
            for name, room in self._needed.items():
                taken[name] = allocate(name, room.memory)
                if self._memory is None:
                    return

    def free_memory(self) -> None:
        """The attempt is over, or has taken what it needs: free the memory that was taken before the stop. From any
        thread."""
        self._memory = None

    def _look_at_shards(self) -> None:
        registry = self._run.registry
        with meshes_stay(), suppress(Exception):  # another torch may lay them out in a way that is not known
            if mesh := registry.mesh:
                for tensor in registry.sharded_tensors().values():
                    self._placed.add((tuple(tensor.shape), placements_over(tensor, mesh) or ()))

    def change(self, mesh: ElasticMesh) -> MeshChange:
        """What this attempt moves of tensors that are sharded over this mesh of the living run. UserError if the newer
        run has no such mesh."""
        if mesh not in self._changes:
            self._changes[mesh] = mesh_change(self._attempt, mesh)
        return self._changes[mesh]

    def mesh(self) -> ElasticMesh | None:
        """The mesh of the newer run, if the model is sharded. UserError if it has no such mesh."""
        mesh = self._run.registry.mesh
        return mesh and mesh.of(self._attempt.new_world)

    def check_moment(self) -> None:
        """UserError if a sharded model cannot change its ranks now, whatever was found when the attempt began."""
        registry = self._run.registry
        if not registry.sharded:
            return
        if why := obstacle(self._run) or hidden_obstacle(self._run):
            raise UserError(why)
        if keeps_others(registry.sharded_modules):
            raise UserError(UNREGISTERED)
        if registry.unreduced:
            raise UserError("the model holds gradients that are not reduced yet, and would be lost")
        if registry.gathers:
            raise UserError(
                "the script has begun to gather sharded parameters before the batch that needs them "
                "(`unshard(async_op=True)`, or a prefetch without its forward pass)"
            )

    def allocate_new_shards(self, header: Header, state: RankState) -> None:
        """On a stayer, for a newer run of another size: memory for its new shards. Raises UserError if the script keeps
        sharded tensors that would go on with their old shards."""
        resharded = self._resharded
        if resharded is None:
            return
        if not resharded.fits(self._run.registry.sharded_modules):
            raise UserError("the sharded model has got or replaced parameters since this attempt began")
        live = self._run.registry.sharded_tensors()
        if odd := sorted(live.keys() ^ header.shards.keys()):
            raise UserError(
                f"{odd[0]} is sharded, and is no parameter and no optimizer's state: its size cannot change"
            )
        own = [*live.values(), *(tensor.grad for tensor in live.values() if tensor.grad is not None)]
        if left := strays([*own, *state.shared.values()], self._run.registry.sharded_modules):
            raise UserError(
                f"the script keeps a sharded tensor of shape {list(left[0].shape)} that is not registered: keep "
                f".full_tensor() or .to_local() of it, or register the optimizer or module that has it"
            )
        taken, self._memory = self._memory or {}, None
        rooms = {name: resharded.room_for(tensor) for name, tensor in live.items()}
        self._check_memory([room for name, room in rooms.items() if name not in taken or not room.fits(taken[name])])
        for name, tensor in live.items():
            room, memory = rooms[name], taken.pop(name, None)
            if memory is None or not room.fits(memory):
                memory = allocate(name, room.memory)
            self._new_shards[name] = (tensor, *resharded.placed(tensor, memory))

    def _check_memory(self, rooms: Sequence[ShardMemory]) -> None:
        """UserError unless this container has so much: it would be killed, and with it what it alone holds."""
        size = sum(room.size for room in rooms if room.device.type == "cpu") * self._run.settings.pod
        free = free_memory()
        if free is not None and size > free:
            raise UserError(
                f"there is no memory for its new shards beside the present ones: they need {size / 2**20:.0f} MiB, "
                f"and {free / 2**20:.0f} MiB are free"
            )

    @property
    def places(self) -> dict[Key, Place]:
        """Where received shards go; {} if this rank's shards stay as they are."""
        return {(SHARED, name): Place(memory, box) for name, (_, memory, box) in self._new_shards.items()}

    def install(self) -> None:
        """The sharded tensors continue in their new memory."""
        if self._resharded and self._new_shards:
            self._resharded.install([(tensor, memory) for tensor, memory, _ in self._new_shards.values()])

    def forget_new_shards(self) -> None:
        """Free the new memory that no tensor has taken."""
        self._new_shards = {}
        self.free_memory()

    def check_shards(self, header: Header, targets: Mapping[Key, Tensor]) -> None:
        """UserError unless this script shards the same tensors in the same way as the old ranks."""
        mesh = self.mesh()
        for part, name in {*targets, *((SHARED, name) for name in header.shards)}:
            target = targets.get((part, name))
            placed = placements_over(target, mesh) if mesh and target is not None and is_sharded(target) else None
            if (None if placed is None else write_placements(placed)) != header.shards.get(name):
                raise UserError(f"{name} is not sharded as on the old ranks: start newcomers with the same script")
        own = self._run.registry.sharding_options()
        for part, there in header.options.items():
            here = own.get(part, {})
            if name := next((name for name in there if here.get(name) != there[name]), ""):
                raise UserError(
                    f"{part} has {name}={here.get(name)}, and {there[name]} on the old ranks: set it in each process "
                    f"before its first batch"
                )
