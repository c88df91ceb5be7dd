"""What a wheel, an sdist and a chart hold, and what they never do: pure, of names and bytes."""

from __future__ import annotations

import configparser
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path
from typing import Final

Entries = Mapping[str, bytes]
"""Names and contents of files."""

PROGRAMS: Final = ("kubectl-perdure", "perdure", "perdure-operator")
"""The commands that the wheel brings."""
_OF_TESTS: Final = re.compile(r"(^|/)(tests?|e2e)/|(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_LOCAL: Final = re.compile(rb"(?:(?<![\w./-])|file://)/(?:root|work|home/\w+|Users/\w+)/[\w.]")
_CODE: Final = r"(?:\w+/)*\w+\.(?:py|json|yaml)|py\.typed"


@dataclass(frozen=True)
class Rules:
    """Of one kind of archive: the form of every name in it, and the names that it has in any case."""

    names: str
    required: Sequence[str]


def rules_of_wheel(version: str) -> Rules:
    """Both packages, and what describes them."""
    about = f"perdure-{version}.dist-info"
    described = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    names = rf"perdure(?:_operator)?/(?:{_CODE})|{re.escape(about)}/(?:{'|'.join(map(re.escape, described))})"
    packages = (
        *(f"{package}/{name}" for package in ("perdure", "perdure_operator") for name in ("__init__.py", "py.typed")),
        "perdure_operator/schema/pod.json",
    )
    return Rules(names, (*packages, *(f"{about}/{name}" for name in described)))


def rules_of_sdist(version: str) -> Rules:
    """What the wheel is built from, and the CRD."""
    top = f"perdure-{version}"
    files = ("PKG-INFO", "README.md", "LICENSE", "pyproject.toml")
    folders = rf"(?:operator/perdure_operator|runtime/perdure)/(?:{_CODE})|crds/[\w.]+\.yaml"
    names = rf"{re.escape(top)}/(?:{folders}|{'|'.join(map(re.escape, files))}|\.gitignore)"
    return Rules(names, tuple(f"{top}/{name}" for name in (*files, "crds/perdure.dev_trainingjobs.yaml")))


def rules_of_chart() -> Rules:
    """The chart with its CRD and the schema of its values."""
    files = ("Chart.yaml", "values.yaml", "values.schema.json", "alerts.yaml")
    folders = r"templates/[\w.]+\.(?:yaml|tpl|txt)|crds/[\w.]+\.yaml|dashboards/\w+\.json"
    names = rf"perdure/(?:{'|'.join(map(re.escape, files))}|{folders})"
    return Rules(names, tuple(f"perdure/{name}" for name in (*files, "crds/perdure.dev_trainingjobs.yaml")))


def entries(archive: Path) -> dict[str, bytes]:
    """The files of a wheel or of a packed tar.

    Raises:
        ValueError: something in it is neither a file nor a folder.

    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {info.filename: wheel.read(info) for info in wheel.infolist() if not info.is_dir()}
    found = {}
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            content = packed.extractfile(member) if member.isfile() else None
            if content is not None:
                found[member.name] = content.read()
            elif not member.isdir():
                raise ValueError(f"{archive.name}: {member.name} is a link or a device")
    return found


def problems(found: Entries, rules: Rules, local: Sequence[str] = ()) -> Iterator[str]:
    """Which rules these files break: a line each. `local` are folders of the machine that built them."""
    for name in rules.required:
        if name not in found:
            yield f"{name} is missing"
    for name, content in sorted(found.items()):
        if _OF_TESTS.search(name):
            yield f"{name} belongs to the tests"
        elif not re.fullmatch(rules.names, name):
            yield f"{name} is of no kind that belongs here"
        for line, text in enumerate(content.splitlines(), 1):
            if _LOCAL.search(text) or any(folder.encode() in text for folder in local):
                yield f"{name}, line {line}, names a folder of somebody's machine"


def wheel_problems(found: Entries, version: str) -> Iterator[str]:
    """Whether the wheel is of this version, and whether each of its commands begins in a module that it has."""
    about = f"perdure-{version}.dist-info"
    named = BytesParser().parsebytes(found.get(f"{about}/METADATA", b""))["Version"]
    if named != version:
        yield f"METADATA is of version {named}, not {version}"
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(found.get(f"{about}/entry_points.txt", b"").decode())
    scripts = dict(parser["console_scripts"]) if "console_scripts" in parser else {}
    if sorted(scripts) != sorted(PROGRAMS):
        yield f"its commands are {', '.join(sorted(scripts)) or 'none'}, not {', '.join(PROGRAMS)}"
    for program, where in sorted(scripts.items()):
        module, _, function = where.partition(":")
        code = found.get(f"{module.replace('.', '/')}.py", b"")
        if f"def {function}(".encode() not in code:
            yield f"{program} begins in {where}, which is not in the wheel"
