"""README's box is true: tests show what it calls supported, and what it calls not proven has none for a reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.readme_box import REPOSITORY, problems

BOX = """# Something

| **Supported**: tested | **Not proven**: not tested | **Refused** |
|---|---|---|
| Models: [whole ones](docs/models.md), and sharded ones; torchrun | GPUs ([what should work](docs/gpus.md)) | FSDP1 |
"""
TESTS = """
def test_models():
    pass

def test_torchrun():
    pass

@pytest.mark.chaos
def test_rare():
    pass

@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.chaos)])
def test_rare_cases(size):
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_cases(size):
    pass
"""
RARE = "pytestmark = [pytest.mark.cluster, pytest.mark.chaos]\n\ndef test_torchrun():\n    pass\n"
SHOWN = {"Models: whole ones": ["test_it.py::test_models"], "sharded ones": ["test_it.py::test_models"]}
ALL = {**SHOWN, "torchrun": ["test_it.py::test_torchrun"]}
GPUS = {"GPUs (what should work)": "there is none"}


def test_all_that_the_box_calls_supported_is_shown_and_all_that_is_not_proven_has_a_reason() -> None:
    assert list(problems(REPOSITORY)) == []


@pytest.mark.parametrize(
    ("box", "shown", "lacks", "found"),
    [
        (BOX, ALL, GPUS, []),
        (BOX, SHOWN, GPUS, ["README.md calls 'torchrun' supported, and no row does"]),
        (
            BOX,
            {**ALL, "slurm": ["test_it.py::test_models"]},
            GPUS,
            ["a row calls 'slurm' supported, and README.md does"],
        ),
        (BOX, ALL, {}, ["README.md calls 'GPUs (what should work)' not proven, and no row does"]),
        (BOX, ALL, {**GPUS, "TPUs": "none"}, ["a row calls 'TPUs' not proven, and README.md does not"]),
        (BOX, {**ALL, "torchrun": []}, GPUS, ["no test shows 'torchrun'"]),
        (
            BOX,
            {**ALL, "torchrun": ["test_it.py::test_gone"]},
            GPUS,
            ["test_it.py::test_gone, which shows 'torchrun', do"],
        ),
        (
            BOX,
            {**ALL, "torchrun": ["gone.py::test_it"]},
            GPUS,
            ["gone.py::test_it, which shows 'torchrun', does not ex"],
        ),
        (
            BOX,
            {**ALL, "torchrun": ["test_it.py::test_rare"]},
            GPUS,
            ["test_it.py::test_rare, which shows 'torchrun', runs only in `make chaos`"],
        ),
        (
            BOX,
            {**ALL, "torchrun": ["test_it.py::test_rare_cases"]},
            GPUS,
            ["test_it.py::test_rare_cases, which shows 'torchrun', runs only in `make chaos`"],
        ),
        (BOX, {**ALL, "torchrun": ["test_it.py::test_cases"]}, GPUS, []),
        (
            BOX,
            {**ALL, "torchrun": ["test_rare.py::test_torchrun"]},
            GPUS,
            ["test_rare.py::test_torchrun, which shows 'torchrun', runs only in `make chaos`"],
        ),
        ("# Something\n", ALL, GPUS, ["README.md has no table of what is supported"]),
    ],
    ids=[
        *("true", "unshown", "unnamed", "no-reason", "no-lack", "no-test", "test-gone", "file-gone"),
        *("chaos", "each-case-chaos", "a-case-chaos", "a-file-of-chaos", "no-table"),
    ],
)
def test_what_differs_is_named(
    tmp_path: Path, box: str, shown: Mapping[str, Sequence[str]], lacks: Mapping[str, str], found: list[str]
) -> None:
    (tmp_path / "README.md").write_text(box)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_rare.py").write_text(RARE)
    said = list(problems(tmp_path, shown, lacks))
    assert [one[: len(words)] for one, words in zip(said, found, strict=True)] == found


def test_the_tests_run_on_the_kubernetes_that_the_box_names() -> None:
    (named,) = re.findall(r"; Kubernetes (\d+\.\d+) with", (REPOSITORY / "README.md").read_text())
    built = (REPOSITORY / "e2e" / "cluster" / "tools" / "kubernetes" / "go.mod").read_text()
    assert re.findall(r"k8s\.io/kubernetes v(\d+\.\d+)\.\d+", built) == [named]
