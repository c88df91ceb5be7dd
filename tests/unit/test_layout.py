"""What the repository promises about itself: light imports, a short example, no shadowed module."""

from __future__ import annotations

import graphlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
import yaml

import perdure

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
MADE = {"log/", "data/", "pins/", "operator/__init__.py"}
"""Named without being here: a bucket's prefixes, and a file that must never be."""


def test_the_folder_operator_never_becomes_a_package() -> None:
    assert not (REPOSITORY / "operator" / "__init__.py").exists(), "it would shadow the standard library's operator"


@pytest.mark.parametrize(
    "module",
    ["perdure", "perdure.wire", "perdure.wire.channel", "perdure.agent.shell", "perdure.cli.main", "perdure.testing"],
)
def test_what_the_operator_and_the_agent_import_is_free_of_torch_and_boto3(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'boto3', 'numpy', 'kopf', 'pydantic'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["perdure.cli.main", "perdure.session", "perdure.adapters"])
def test_no_framework_is_imported_before_its_adapter_is(module: str) -> None:
    frameworks = {"transformers", "accelerate", "lightning", "pytorch_lightning", "huggingface_hub"}
    public = "[getattr(perdure, name) for name in perdure.__all__]"
    code = f"import sys, perdure, {module}; {public}; print(*sorted({frameworks} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", *(str(d.relative_to(REPOSITORY)) for d in PAGES)],
)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    roots = [REPOSITORY, REPOSITORY / "operator" / "perdure_operator", REPOSITORY / "runtime" / "perdure"]
    text = (REPOSITORY / page).read_text()
    named = set(re.findall(r"`([\w./-]+(?:\.py|/))`", text)) - MADE
    folders = {path.rpartition("/")[0] for path in named}
    found = {
        path
        for path in named
        for root in [*roots, *(REPOSITORY / folder for folder in folders)]
        if (root / path).exists()
    }
    assert named - found == set()


@pytest.mark.parametrize("package", ["perdure", "perdure_operator"])
def test_no_module_imports_itself_through_others_not_even_for_type_checkers(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    order = graphlib.TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )
    order.prepare()  # CycleError names the modules


def test_the_session_has_the_names_of_a_plain_script_and_no_logic_beyond_them() -> None:
    """Decision 046: what is needed more rarely is a function of the package, found in docs/how-to/index.md."""
    public = {name for name in vars(perdure.Session) if not name.startswith("_")}
    assert public == {
        *("from_env", "wrap", "register", "loader", "steps", "epochs", "weighted", "step", "stop", "save", "on"),
        *("state", "result", "rank", "world", "device", "steps_done", "close"),
    }
    facade = REPOSITORY / "runtime" / "perdure" / "session" / "session.py"
    assert len(facade.read_text().splitlines()) <= 300


def test_the_table_of_calls_names_every_function_of_the_package() -> None:
    table = (REPOSITORY / "docs" / "how-to" / "index.md").read_text()
    functions = {name for name in perdure.__all__ if inspect.isfunction(getattr(perdure, name))}
    assert {name for name in functions if f"`perdure.{name}(" not in table} == set()


@pytest.mark.parametrize(("example", "most"), [("digits", 8), ("tinygpt", 24), ("trainer", 4)])
def test_an_example_marks_each_of_its_few_lines_of_perdure(example: str, most: int) -> None:
    lines = (EXAMPLES / example / "train.py").read_text().splitlines()
    marked = [line for line in lines if line.rstrip().endswith("# perdure")]
    used = [
        line for line in lines if "session" in line.split("#")[0] or line.startswith(("import perdure", "from perdure"))
    ]
    assert used == marked
    assert len(marked) <= most


@pytest.mark.parametrize("example", ["digits", "tinygpt", "trainer", "lightning"])
def test_an_examples_manifest_is_short_and_one_job(example: str) -> None:
    text = (EXAMPLES / example / "job.yaml").read_text()
    assert len(text.splitlines()) < 30
    assert [document["kind"] for document in yaml.safe_load_all(text)] == ["TrainingJob"]
