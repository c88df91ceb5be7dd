"""What the repository promises about itself: light imports, a short example, no shadowed module."""

from __future__ import annotations

import ast
import graphlib
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp
import pytest
import yaml

import perdure

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
PRODUCT = [REPOSITORY / "operator", REPOSITORY / "runtime"]
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
SECONDS = 600
"""So long no import takes: one of torch computes for 5 s, which on a busy machine was more than a minute."""
MADE = {"log/", "data/", "pins/", "operator/__init__.py"}
"""Named without being here: a bucket's prefixes, and a file that must never be."""
TABLE_ROW = re.compile(r"^(\w+/?(?:, \w+/?)*)  +\S", re.M)
"""A row of a table in a package's docstring: modules, and what they are."""
SHARED_ALIASES: Mapping[str, str] = {
    "Action": "what a pure machine's shell has to do: each machine has its own union of them",
    "Event": "what comes to a pure machine, or is an entry of the log: each has its own union of them",
    "Step": "a machine's next state, and its actions",
    "Hook": "a type variable",
    "Json": "what json.loads returns",
    "Key": "a pair of strings that leads to something",
    "Noted": "the agent's next state, and its actions, in two parts of one machine",
    "Numbers": "an array of numbers",
}
"""Aliases that may stand in several modules, with the reason. A class never has one of these names."""


def packages_with_a_table() -> list[str]:
    """The packages of runtime and operator whose docstrings list their modules."""
    files = sorted(file for root in PRODUCT for file in root.rglob("__init__.py"))
    rows = {file: TABLE_ROW.findall(ast.get_docstring(ast.parse(file.read_text())) or "") for file in files}
    return [str(file.parent.relative_to(REPOSITORY)) for file in files if len(rows[file]) > 1]


def test_the_folder_operator_never_becomes_a_package() -> None:
    assert not (REPOSITORY / "operator" / "__init__.py").exists(), "it would shadow the standard library's operator"


@pytest.mark.parametrize(
    "module",
    ["perdure", "perdure.wire", "perdure.wire.channel", "perdure.agent.shell", "perdure.cli.main", "perdure.testing"],
)
def test_what_the_operator_and_the_agent_import_is_free_of_torch_and_boto3(module: str) -> None:
    heavy = {"torch", "boto3", "numpy", "kopf", "pydantic", "rich"}
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert done.stdout.split() == []


def test_no_framework_is_imported_before_its_adapter_is() -> None:
    frameworks = {"transformers", "accelerate", "lightning", "pytorch_lightning", "huggingface_hub"}
    public = "[getattr(perdure, name) for name in perdure.__all__]"
    modules = "perdure.cli.main, perdure.session, perdure.adapters"
    code = f"import sys, perdure, {modules}; {public}; print(*sorted({frameworks} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", *(str(d.relative_to(REPOSITORY)) for d in PAGES)],
)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    roots = [REPOSITORY, REPOSITORY / "operator" / "perdure_operator", REPOSITORY / "runtime" / "perdure"]
    text = (REPOSITORY / page).read_text()
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.yaml|/))`", text)) - MADE
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


@pytest.mark.parametrize("package", packages_with_a_table())
def test_the_table_of_a_package_names_its_modules_and_no_others(package: str) -> None:
    folder = REPOSITORY / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    present = {file.stem for file in folder.glob("*.py")} | {file.parent.name for file in folder.glob("*/__init__.py")}
    named = {name.rstrip("/") for names in TABLE_ROW.findall(text) for name in names.split(", ")}
    assert named - present == set(), "named, and not there"
    assert present - {"__init__", "__main__"} - set(re.findall(r"\w+", text)) == set(), "there, and not named"


def defined_types(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The names of public classes and of type aliases, each with whether it is an alias."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, False
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id):
                    yield target.id, True


def test_a_name_of_a_type_has_one_meaning_in_runtime_and_operator() -> None:
    found: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for file in sorted(file for root in PRODUCT for file in root.rglob("*.py")):
        for name, alias in defined_types(ast.parse(file.read_text())):
            found[name].append((str(file.relative_to(REPOSITORY)), alias))
    twice = {name: places for name, places in found.items() if len(places) > 1}
    several = {name for name, places in twice.items() if all(alias for _, alias in places)}
    assert {name: places for name, places in twice.items() if name not in several & SHARED_ALIASES.keys()} == {}
    assert SHARED_ALIASES.keys() - several == set(), "excepted, and only once there"


def test_the_session_has_the_names_of_a_plain_script_and_no_logic_beyond_them() -> None:
    """Decisions 046 and 084: what is needed more rarely is a function of the package, found in docs/how-to/index.md."""
    public = {name for name in vars(perdure.Session) if not name.startswith("_")}
    assert public == {
        *("from_env", "wrap", "register", "loader", "steps", "epochs", "weighted", "step", "stop", "save", "on"),
        *("state", "result", "rank", "world", "device", "steps_done", "close", "micro"),
    }
    facade = REPOSITORY / "runtime" / "perdure" / "session" / "session.py"
    assert len(facade.read_text().splitlines()) <= 310


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
