"""What must not be in a release is found, and so is what lacks."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.release.contents import entries, problems, rules_of_chart, rules_of_sdist, rules_of_wheel, wheel_problems

SCRIPTS = b"""[console_scripts]
kubectl-perdure = perdure_operator.start:main
perdure = perdure.start:main
perdure-operator = perdure_operator.start:main
"""
ABOUT = "perdure-1.2.3.dist-info"
WHEEL = {
    **dict.fromkeys(rules_of_wheel("1.2.3").required, b""),
    "perdure/start.py": b"def main() -> int:\n",
    "perdure_operator/start.py": b"def main() -> int:\n",
    f"{ABOUT}/METADATA": b"Metadata-Version: 2.4\nName: perdure\nVersion: 1.2.3\n\nAbout it.\n",
    f"{ABOUT}/entry_points.txt": SCRIPTS,
}
SDIST = dict.fromkeys(rules_of_sdist("1.2.3").required, b"")
CHART = dict.fromkeys(rules_of_chart().required, b"")


def test_what_belongs_there_is_no_problem() -> None:
    assert list(problems(WHEEL, rules_of_wheel("1.2.3"))) == []
    assert list(wheel_problems(WHEEL, "1.2.3")) == []
    assert list(problems(SDIST, rules_of_sdist("1.2.3"))) == []
    assert list(problems(CHART, rules_of_chart())) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("perdure/test_start.py", "belongs to the tests"),
        ("perdure/conftest.py", "belongs to the tests"),
        ("perdure/tests/start.py", "belongs to the tests"),
        ("e2e/demo/__main__.py", "belongs to the tests"),
        ("perdure/start.pyc", "is of no kind that belongs here"),
        ("perdure/log/py.typed", "is of no kind that belongs here"),
        ("perdure/.env", "is of no kind that belongs here"),
        ("other/__init__.py", "is of no kind that belongs here"),
        ("perdure/../start.py", "is of no kind that belongs here"),
        ("perdure-1.2.2.dist-info/METADATA", "is of no kind that belongs here"),
    ],
)
def test_a_file_that_does_not_belong_in_the_wheel_is_named(name: str, found: str) -> None:
    assert list(problems({**WHEEL, name: b""}, rules_of_wheel("1.2.3"))) == [f"{name} {found}"]


def test_packages_may_be_about_testing() -> None:
    names = ("perdure/testing/__init__.py", "perdure/live/contest.py", "perdure/latest_commit.py")
    assert list(problems({**WHEEL, **dict.fromkeys(names, b"")}, rules_of_wheel("1.2.3"))) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tests/unit/runtime/test_console.py", "belongs to the tests"),
        ("e2e/demo/story.py", "belongs to the tests"),
        ("examples/digits/README.md", "is of no kind that belongs here"),
        ("helm/perdure/crds/perdure.dev_trainingjobs.yaml", "is of no kind that belongs here"),
    ],
)
def test_a_file_that_does_not_belong_in_the_sdist_is_named(name: str, found: str) -> None:
    name = f"perdure-1.2.3/{name}"
    assert list(problems({**SDIST, name: b""}, rules_of_sdist("1.2.3"))) == [f"{name} {found}"]


def test_a_file_that_does_not_belong_in_the_chart_is_named() -> None:
    name = "perdure/templates/tests/install.yaml"
    assert list(problems({**CHART, name: b""}, rules_of_chart())) == [f"{name} belongs to the tests"]


@pytest.mark.parametrize(
    "text", [b"x = '/home/ann/perdure'", b"see /root/perdure", b"file:///Users/ann/x", b"/srv/b/x"]
)
def test_a_folder_of_somebodys_machine_is_named_with_its_line(text: bytes) -> None:
    content = b"first\n" + text
    assert list(problems({**WHEEL, "perdure/start.py": content}, rules_of_wheel("1.2.3"), ["/srv/b/"])) == [
        "perdure/start.py, line 2, names a folder of somebody's machine"
    ]


@pytest.mark.parametrize(
    "text", [b"file:///bucket/root/x", b"/tmp/x", b"s3://bucket/home/ann/x", b"/rooted/x", b"/home/"]
)
def test_another_path_is_nobodys(text: bytes) -> None:
    assert list(problems({**WHEEL, "perdure/start.py": text}, rules_of_wheel("1.2.3"), ["/srv/b/"])) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("wheel", "perdure_operator/schema/pod.json"),
        ("wheel", f"{ABOUT}/licenses/LICENSE"),
        ("sdist", "perdure-1.2.3/LICENSE"),
        ("sdist", "perdure-1.2.3/crds/perdure.dev_trainingjobs.yaml"),
        ("chart", "perdure/values.schema.json"),
    ],
)
def test_a_file_that_lacks_is_named(kind: str, name: str) -> None:
    found, rules = {
        "wheel": (WHEEL, rules_of_wheel("1.2.3")),
        "sdist": (SDIST, rules_of_sdist("1.2.3")),
        "chart": (CHART, rules_of_chart()),
    }[kind]
    rest = {one: content for one, content in found.items() if one != name}
    assert list(problems(rest, rules)) == [f"{name} is missing"]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (
            {f"{ABOUT}/entry_points.txt": SCRIPTS.replace(b"kubectl-perdure", b"plugin")},
            ["its commands are perdure, perdure-operator, plugin, not kubectl-perdure, perdure, perdure-operator"],
        ),
        (
            {f"{ABOUT}/entry_points.txt": b""},
            ["its commands are none, not kubectl-perdure, perdure, perdure-operator"],
        ),
        (
            {"perdure/start.py": b"def begin() -> int:\n"},
            ["perdure begins in perdure.start:main, which is not in the wheel"],
        ),
        ({f"{ABOUT}/METADATA": b"Version: 1.2.2\n"}, ["METADATA is of version 1.2.2, not 1.2.3"]),
    ],
    ids=["another", "none", "no-function", "version"],
)
def test_a_wheel_without_its_commands_or_of_another_version_is_refused(
    changed: Mapping[str, bytes], found: list[str]
) -> None:
    assert list(wheel_problems({**WHEEL, **changed}, "1.2.3")) == found


def test_an_entry_point_whose_module_is_gone_is_named() -> None:
    rest = {name: content for name, content in WHEEL.items() if name != "perdure/start.py"}
    assert list(wheel_problems(rest, "1.2.3")) == ["perdure begins in perdure.start:main, which is not in the wheel"]


def test_an_archive_with_a_link_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "perdure-1.2.3.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        file, link = tarfile.TarInfo("perdure/file"), tarfile.TarInfo("perdure/link")
        file.size, link.type, link.linkname = 3, tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(file, io.BytesIO(b"abc"))
        packed.addfile(link)
    with pytest.raises(ValueError, match="perdure/link is a link or a device"):
        entries(archive)
