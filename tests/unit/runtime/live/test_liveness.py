"""Objects that keep the ranks they were made with are found; those that the session itself made are not."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from perdure.live.liveness import unknown_keeper
from perdure.state import keepers
from perdure.state.keepers import OWN_DDP
from perdure.state.wrapping import Replica


def sampler() -> DistributedSampler[Tensor]:
    return DistributedSampler(TensorDataset(torch.zeros(4)), num_replicas=2, rank=0)


MADE_BEFORE = """
from torch.utils.data.distributed import DistributedSampler
own = DistributedSampler([1, 2], num_replicas=2, rank=0)
from perdure.live.liveness import unknown_keeper
print(unknown_keeper())
"""


class Derived(DistributedDataParallel):
    """A script's own kind."""


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_the_session_has_made_for_earlier_ranks_may_be_kept_by_a_compiler() -> None:
    replica = Replica(nn.Linear(2, 2), deterministic=False, options={})
    replica.adapt(2)
    kept = replica.inside[0]
    replica.adapt(2)
    assert kept is not replica.inside[0]
    assert unknown_keeper() == ""


def test_what_the_script_has_made_is_found() -> None:
    own = Derived(nn.Linear(2, 2))
    assert unknown_keeper() == OWN_DDP
    del own
    gc.collect()
    assert unknown_keeper() == ""


def test_a_sampler_of_the_scripts_own_is_found() -> None:
    own = sampler()
    assert "use session.loader" in unknown_keeper()
    del own


class Whole(DistributedSampler[Tensor]):
    """It sets what it needs by itself."""

    def __init__(self) -> None:
        self.num_replicas, self.rank = 2, 0


class Numbered:
    """A part of a script's own kinds."""

    def __new__(cls, number: int) -> Numbered:
        made = super().__new__(cls)
        made.number = number
        return made

    number: int


class Both(DistributedSampler[Tensor], Numbered):
    def __init__(self, number: int) -> None:
        super().__init__(TensorDataset(torch.zeros(4)), num_replicas=2, rank=number)


MAKERS: dict[str, Callable[[], DistributedSampler[Tensor]]] = {
    "copied": lambda: copy.copy(sampler()),
    "copied with all that is in it": lambda: copy.deepcopy(sampler()),
    "read from a file": lambda: pickle.loads(pickle.dumps(sampler())),  # noqa: S301 - its own bytes
    "without the class's own __init__": Whole,
    "by another class, too": lambda: Both(1),
}


@pytest.mark.parametrize("how", MAKERS)
def test_a_sampler_is_found_however_it_was_made(how: str) -> None:
    own = MAKERS[how]()
    gc.collect()
    assert "use session.loader" in unknown_keeper()
    assert getattr(own, "number", 1) == 1


@pytest.mark.parametrize("world", [1, 2])
def test_a_copy_of_a_wrapped_model_is_found(world: int) -> None:
    replica = Replica(nn.Linear(2, 2), deterministic=False, options={})
    replica.adapt(world)
    own = copy.deepcopy(replica)
    assert "copy what is inside" in unknown_keeper()
    del own
    gc.collect()
    assert unknown_keeper() == ""


def test_what_was_made_before_the_session_was_imported_is_found() -> None:
    done = subprocess.run([sys.executable, "-c", MADE_BEFORE], stdout=subprocess.PIPE, text=True, check=True)
    assert "use session.loader" in done.stdout


class Note:
    """Keeps ranks, and is found by its class."""


class OtherNote(Note):
    pass


def test_those_that_are_alive_are_known_whenever_and_however_they_were_made() -> None:
    before = [Note(), OtherNote()]
    assert set(keepers.alive(Note)) == set(before)
    later = [Note(), OtherNote(), copy.copy(before[0]), copy.deepcopy(before[1])]
    assert set(keepers.alive(Note)) == {*before, *later}
    del before[:], later[1:]
    assert keepers.alive(Note) == later


@pytest.mark.parametrize(
    ("kind", "first"), [(DistributedDataParallel, "module"), (Derived, "module"), (Both, "number")]
)
def test_a_caller_that_asks_how_it_is_made_gets_the_same_answer(kind: type, first: str) -> None:
    """Tools that build objects from their configuration ask."""
    assert next(iter(inspect.signature(kind).parameters)) == first


class Slow(type):
    """Of a type whose objects are being looked for."""

    looking, made = threading.Event(), threading.Event()

    def __subclasscheck__(cls, _kind: type) -> bool:
        cls.looking.set()
        return not cls.made.wait(60)

    __instancecheck__ = __subclasscheck__


def test_a_tuple_that_the_script_is_filling_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another holder CPython does not end it: SystemError, in the script."""
    monkeypatch.setattr(keepers, "KEEPERS", {Slow("Kept", (), {}): "it keeps ranks"})
    look = threading.Thread(target=unknown_keeper)
    own = sampler()

    def numbers() -> Iterator[int]:
        look.start()
        assert Slow.looking.wait(60)
        yield 1

    assert tuple(numbers()) == (1,)
    Slow.made.set()
    look.join()
    del own
