"""The random generators of one rank: read at a commit, put back right before the first batch is fetched.

They belong to a rank, not to the job: a run of another size cannot go on with them and draws its own from
(seed, step, rank), the same ones whenever it starts from the same commit. Called by the session.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """The generators' states, of the codec's closed set."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # the one that scripts use
        "torch": torch.get_rng_state().numpy(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state().numpy()
    return state


def apply(state: dict[str, Any]) -> None:
    """Puts captured states back."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(torch.from_numpy(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]))


def derive(seed: int, step: int, rank: int) -> None:
    """Seeds all generators for a rank that has no state of its own to go on with."""
    digest = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
