"""What is found that holds on to the ranks it was made with, and what is not: what the session itself has made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from perdure.session.liveness import OWN_DDP, hidden_obstacle
from perdure.session.wrapping import Replica


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
    assert hidden_obstacle() == ""


def test_what_the_script_has_made_is_found() -> None:
    own = DistributedDataParallel(nn.Linear(2, 2))
    assert hidden_obstacle() == OWN_DDP
    del own
