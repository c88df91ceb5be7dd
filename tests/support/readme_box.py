"""What README's box calls supported or not proven, and the tests that show the one, or why the other has none.

A person who changes the box changes a row here: `make check` runs this module, which prints what differs. The third
column, what is refused, is tried by tests/unit/runtime/state/test_shards.py.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SHOWN: Final[Mapping[str, Sequence[str]]] = {
    "Models on CPUs: whole ones, one process or DDP": [
        "tests/unit/runtime/session/test_boundary.py::test_a_disturbed_script_ends_as_if_nothing_had_happened",
        "tests/unit/runtime/session/test_ranks.py::test_two_ranks_resume_to_the_result_of_an_undisturbed_run",
    ],
    "sharded ones by FSDP2, HSDP and FSDP2 with tensor parallelism (live)": [
        "tests/unit/runtime/live/test_sharded_live.py::test_replaced_ranks_change_nothing",
        "tests/unit/runtime/session/test_sharded.py::test_a_resumed_run_is_the_undisturbed_one_bit_for_bit",
    ],
    "any torch optimizer": [
        "tests/unit/runtime/state/test_registry.py::test_every_optimizer_of_torch_goes_on_exactly",
    ],
    "Kubernetes 1.37 with 3 nodes": ["e2e/scenarios/test_drain.py::test_two_nodes_drained_at_once"],
    "folders and S3": [
        "tests/unit/runtime/store/test_whole_run.py::"
        "test_a_run_saves_is_overtaken_and_its_successor_of_another_size_resumes",
    ],
    "torchrun": [
        "tests/unit/runtime/session/test_found_groups.py::"
        "test_plain_torchrun_is_ended_in_the_middle_and_goes_on_with_other_ranks_to_the_same_weights",
    ],
    "Hugging Face's Trainer and Lightning (live at the same size)": [
        "tests/unit/runtime/adapters/test_live.py::test_a_replaced_rank_changes_nothing",
        "tests/unit/runtime/adapters/test_hf.py::test_two_ranks_that_are_drained_come_to_the_bits_of_two_that_are_not",
        "tests/unit/runtime/adapters/test_lightning.py::"
        "test_a_training_that_is_asked_to_leave_comes_to_what_it_comes_to_undisturbed",
    ],
}
"""What is supported, and the tests that show it."""
LACKS: Final[Mapping[str, str]] = {
    "GPUs and NCCL (what should work there)": "the tests' machine has no GPU",
    "more than 4 ranks in a real cluster": "the tests' machine has 2 cores; up to 64 members are simulated",
    "clouds' own autoscalers and spot notices": "the tests have no cloud: Karpenter launches nodes of this machine",
}
"""What is not proven, and why."""
_ROW: Final = re.compile(r"^\| \*\*Supported\*\*.*\n\|[-|]+\|\n\|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


def problems(
    folder: Path, shown: Mapping[str, Sequence[str]] = SHOWN, lacks: Mapping[str, str] = LACKS
) -> Iterator[str]:
    """What differs between the README in this folder and the rows, and which of their tests do not exist or run only
    in `make chaos`: a line each."""
    row = _ROW.search((folder / "README.md").read_text())
    if row is None:
        yield "README.md has no table of what is supported"
        return
    supported, unproven = (_entries(row[column]) for column in (1, 2))
    for column, found, known in (("supported", supported, list(shown)), ("not proven", unproven, list(lacks))):
        yield from (f"README.md calls {one!r} {column}, and no row does" for one in found if one not in known)
        yield from (f"a row calls {one!r} {column}, and README.md does not" for one in known if one not in found)
    for entry, tests in shown.items():
        if not tests:
            yield f"no test shows {entry!r}"
        for test in tests:
            if why := why_not(folder, test):
                yield f"{test}, which shows {entry!r}, {why}"


def _entries(column: str) -> list[str]:
    """The entries of a column: a semicolon or ", and" begins another one. Of a link its text counts."""
    text = _LINK.sub(r"\1", column).strip()
    return [part for entry in text.split("; ") for part in entry.split(", and ")]


def why_not(folder: Path, test: str) -> str:
    """Why this test does not run at every change; "" if it does, at least one case of it."""
    file, _, name = test.partition("::")
    body = ast.parse((folder / file).read_text()).body if (folder / file).is_file() else []
    found = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if found is None:
        return "does not exist"
    marks = [node.value for node in body if isinstance(node, ast.Assign) and _names(node) == ["pytestmark"]]
    cases = [one.args[1] for one in found.decorator_list if isinstance(one, ast.Call) and len(one.args) == 2]
    alone = [one for one in found.decorator_list if not isinstance(one, ast.Call)]
    rare = any(_is_chaos(one) for one in (*marks, *alone))
    rare = rare or any(isinstance(one, ast.List) and all(map(_is_chaos, one.elts)) for one in cases)
    return "runs only in `make chaos`" if rare else ""


def _names(node: ast.Assign) -> list[str]:
    return [ast.unparse(target) for target in node.targets]


def _is_chaos(node: ast.expr) -> bool:
    return "pytest.mark.chaos" in ast.unparse(node)


def main() -> int:
    """Exit status 1 if something differs."""
    found = list(problems(REPOSITORY))
    print(*(f"tests/support/readme_box.py: {line}\n" for line in found), sep="", end="")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
