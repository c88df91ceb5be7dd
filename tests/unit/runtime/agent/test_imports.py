"""A program's imports are read from its source: only installed packages count, and no code runs for that."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType

import pytest

from perdure.agent.imports import Import, imports_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script's folder, and one that packages are installed to, with `alpha` and `beta`; both are in sys.path."""
    installed, own = tmp_path / "lib" / "site-packages", tmp_path / "app"
    for package in ("alpha", "beta"):
        (installed / package / "inner").mkdir(parents=True)
        for part in ("__init__.py", "inner/__init__.py"):
            (installed / package / part).write_text("raise RuntimeError('nothing is run')")
    own.mkdir()
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.syspath_prepend(str(own))
    return own


def write(folder: Path, sources: Mapping[str, str]) -> None:
    for name, text in sources.items():
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def read(folder: Path, source: str, others: Mapping[str, str] = MappingProxyType({})) -> list[Import]:
    write(folder, {"train": source, **others})
    return list(imports_of(str(folder / "train.py"), module=False))


def test_what_is_installed_is_reported_in_its_order_and_once(folder: Path) -> None:
    source = "import beta.inner, alpha\nfrom alpha.inner import thing, other\nimport beta.inner as again\n"
    assert read(folder, source) == [Import("beta.inner"), Import("alpha"), Import("alpha.inner", ("thing", "other"))]


def test_neither_the_standard_library_nor_what_is_not_there_is_reported(folder: Path) -> None:
    assert read(folder, "import json, os.path, nosuch\nfrom argparse import ArgumentParser") == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("try:\n    import alpha\nexcept ImportError:\n    import beta", ["alpha"]),
        ("if True:\n    import alpha\nelse:\n    import beta", ["alpha", "beta"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import alpha\nelse:\n    import beta", ["beta"]),
        ("import typing\nif typing.TYPE_CHECKING:\n    import alpha", []),
        ("with open('x'):\n    import alpha", ["alpha"]),
        ("def later():\n    import alpha", []),
        ("class Now:\n    import alpha", ["alpha"]),
        ("import alpha\nthis is no python", []),
        ("from alpha import *", ["alpha"]),
    ],
    ids=["try", "if", "typing", "typing-by-name", "with", "function", "class", "syntax", "star"],
)
def test_what_may_never_be_reached_is_not_reported(folder: Path, source: str, found: list[str]) -> None:
    assert [one.module for one in read(folder, source)] == found


def test_the_script_s_own_modules_are_read_and_not_reported(folder: Path) -> None:
    found = read(
        folder,
        "import models\nfrom parts import net\nfrom parts.more import deep",
        {
            "models": "import alpha\nimport train",
            "parts/__init__": "",
            "parts/net": "from . import other\nfrom .other import x\nimport beta",
            "parts/other": "import alpha.inner",
            "parts/more": "from ..nowhere import y\nfrom parts.deep import z",
            "parts/deep": "import beta.inner",
        },
    )
    assert [one.module for one in found] == ["alpha", "alpha.inner", "beta", "beta.inner"]


def test_a_module_of_the_script_s_own_hides_what_is_installed(folder: Path) -> None:
    assert read(folder, "import alpha", {"alpha": "import beta"}) == [Import("beta")]


def test_a_folder_that_only_holds_data_hides_nothing(folder: Path) -> None:
    (folder / "alpha").mkdir()
    assert read(folder, "import alpha") == [Import("alpha")]


def test_what_this_process_has_imported_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "models", ModuleType("models"))
    assert read(folder, "import models, parts", {"models": "import alpha", "parts": "import beta"}) == [Import("beta")]


def test_a_module_that_is_run_is_read_behind_its_packages(folder: Path) -> None:
    write(folder, {"job/__init__": "import alpha", "job/run": "from .net import Net", "job/net": "import beta"})
    assert imports_of("job.run", module=True) == (Import("alpha"), Import("beta"))
    write(folder, {"job/__main__": "from .run import main"})
    assert imports_of("job", module=True) == (Import("alpha"), Import("beta"))
    assert imports_of("alpha", module=True) == ()
    assert imports_of("nosuch.thing", module=True) == ()
