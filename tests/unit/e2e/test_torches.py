"""Which versions of torch are promised, and which are tried."""

from __future__ import annotations

import tomllib

from e2e.prepare import envs, torches


def minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def test_each_minor_version_from_the_floor_to_the_pinned_one_is_tried() -> None:
    extras = tomllib.loads(envs.PYPROJECT.read_text())["project"]["optional-dependencies"]
    (floor,) = (word.removeprefix("torch>=") for word in extras["runtime"] if word.startswith("torch>="))
    (pinned,) = (
        line.removeprefix("torch==") for line in envs.CONSTRAINTS.read_text().splitlines() if line.startswith("torch==")
    )
    tried = [*map(minor, torches.VERSIONS), minor(pinned)]
    first = minor(floor)
    assert tried == [(first[0], first[1] + more) for more in range(len(tried))]


def test_an_override_asks_for_the_parts_of_cuda_that_torch_loads() -> None:
    assert torches._with_parts("cuda-toolkit==13.2.2") == f"cuda-toolkit[{torches.TOOLKIT}]==13.2.2"
    assert torches._with_parts("nvidia-nccl-cu13==2.30.7") == "nvidia-nccl-cu13==2.30.7"
