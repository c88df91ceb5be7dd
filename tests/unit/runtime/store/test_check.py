"""What `perdure store-check` finds in good stores, and in such that break one promise each."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e.harness.local_s3 import S3Server
from perdure.cli.main import main
from perdure.errors import StorageError
from perdure.store import ObjectInfo, Store, open_store
from perdure.store.check import WRITERS, CheckResult, check
from perdure.wire import Env
from tests.support.gate import without_aborts
from tests.support.store import CarelessStore, MemoryStore, UnorderedStore, WatchedStore
from tests.unit.runtime.store.conftest import BUCKET

CHECKS = [
    "write and read",
    "conditional write",
    "one winner among writers at once",
    "checksum",
    "large object",
    "list",
    "delete",
    "unfinished uploads",
    "conditional write of a large object",
    "clock",
]


def problems(store: Store) -> dict[str, str]:
    found = list(check(store))
    assert [finding.check for finding in found] == CHECKS
    assert store.list("store-check-") == [], "something was left"
    return {finding.check: finding.problem for finding in found if finding.problem}


@pytest.mark.usefixtures("s3_credentials")
def test_a_real_server_keeps_every_promise(s3_server: S3Server) -> None:
    assert problems(open_store(f"s3://{BUCKET}/checked", s3_server.environ)) == {}


@pytest.mark.usefixtures("s3_credentials")
def test_one_where_uploads_may_not_be_aborted_is_found(s3_server: S3Server) -> None:
    with without_aborts(s3_server) as address:
        found = problems(open_store(f"s3://{BUCKET}/refused", s3_server.environ | {Env.S3_ENDPOINT: address}))
    assert found.keys() == {"unfinished uploads"}
    assert "s3:AbortMultipartUpload" in found["unfinished uploads"]


def test_a_folder_keeps_every_promise(tmp_path: Path) -> None:
    assert problems(open_store(f"file://{tmp_path}", {})) == {}


def test_a_store_that_lists_in_its_own_order_is_accepted_with_a_remark() -> None:
    store = UnorderedStore()
    assert problems(store) == {}
    (measured,) = (finding.measured for finding in check(store) if finding.check == "list")
    assert "not sorted by key" in measured


def test_one_that_ignores_conditions_is_found() -> None:
    found = problems(CarelessStore())
    assert found.keys() == {
        "conditional write",
        "one winner among writers at once",
        "conditional write of a large object",
    }
    assert "If-None-Match: * is ignored" in found["conditional write"]
    assert found["one winner among writers at once"].startswith("8 of 8")


class Racing(MemoryStore):
    """Looks and then writes, as a gateway over a file system may: all writers look before any of them writes."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = threading.Barrier(WRITERS)

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        if if_absent and "one-winner" in key and key not in self.objects:
            self._looked.wait(60)
            super().put(key, data)
        else:
            super().put(key, data, if_absent=if_absent)


def test_one_that_looks_and_then_writes_is_found() -> None:
    found = problems(Racing())
    assert found == {
        "one winner among writers at once": "8 of 8 conditional writes of one key succeeded, instead of one"
    }


class Stale(MemoryStore):
    """Lists its objects after a while."""

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        return super().list(prefix, after=after, limit=limit)[:-1]


class Deaf(MemoryStore):
    """Deletes nothing."""

    def delete(self, keys: Sequence[str]) -> None:
        if not any("store-check" in key and "/delete/" in key for key in keys) or len(keys) > 2:
            super().delete(keys)


class Whole(MemoryStore):
    """Sends the whole object, whichever range is requested."""

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:  # noqa: ARG002
        return super().get(key)


class Cut(MemoryStore):
    """Loses a part of large objects."""

    def put_stream(
        self,
        key: str,
        blocks: Iterable[memoryview],
        size: int,  # noqa: ARG002
        *,
        if_absent: bool = False,
    ) -> None:
        super().put(key, b"".join(bytes(block) for block in blocks)[:-1], if_absent=if_absent)


class Mixed(MemoryStore):
    """Puts the parts of large objects together in another order."""

    def put_stream(
        self,
        key: str,
        blocks: Iterable[memoryview],
        size: int,  # noqa: ARG002
        *,
        if_absent: bool = False,
    ) -> None:
        super().put(key, b"".join([bytes(block) for block in blocks][::-1]), if_absent=if_absent)


class Paging(MemoryStore):
    """Lists from the beginning, wherever a list should begin."""

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:  # noqa: ARG002
        return super().list(prefix, limit=limit)


class Forgetful(MemoryStore):
    """Keeps the checksum of something else."""

    def head(self, key: str) -> ObjectInfo | None:
        info = super().head(key)
        return info and ObjectInfo(info.size, "0" * 16, info.modified)


class Late(MemoryStore):
    """Its clock is ten minutes behind."""

    def head(self, key: str) -> ObjectInfo | None:
        info = super().head(key)
        return info and ObjectInfo(info.size, info.crc, time.time() - 600)


@pytest.mark.parametrize(
    ("store", "broken", "why"),
    [
        (Stale(), "list", "12 objects were written, but the list right afterwards has 11"),
        (Deaf(), "delete", "a deleted object is still there"),
        (Whole(), "write and read", "bytes 2 to 4 of an object reads as b'0123456789' instead of b'234'"),
        (Cut(), "large object", "25165824 of 25165825 bytes were read back"),
        (Mixed(), "large object", "or they differ from what was written"),
        (Paging(), "list", "three keys after a given one"),
        (Forgetful(), "checksum", "the store says that it is 0000000000000000"),
        (Late(), "clock", "the store's clock is 600 s behind this machine's"),
    ],
    ids=["stale-list", "no-delete", "no-ranges", "cut", "mixed", "no-paging", "wrong-checksum", "late"],
)
def test_one_that_breaks_a_promise_is_found(store: MemoryStore, broken: str, why: str) -> None:
    found = {finding.check: finding.problem for finding in check(store) if finding.problem}
    assert why in found[broken]


READS = {"write and read", "conditional write", "one winner among writers at once"}


@pytest.mark.parametrize(
    ("refused", "broken"),
    [
        ("put", {*CHECKS}),
        ("get", READS | {"large object"}),
        ("head", {"checksum", "delete", "clock"}),
        ("list", {"list", "delete"}),
        ("delete", {"delete"}),
        ("sweep", {"unfinished uploads"}),
    ],
)
def test_a_refused_call_is_a_finding_with_the_remedy_and_the_rest_is_tried(refused: str, broken: set[str]) -> None:
    remedy = f"AccessDenied: allow s3:{refused}"

    def around(kind: str, _key: str, act: Callable[[], Any]) -> Any:
        if kind == refused:
            raise StorageError(f"cannot {kind} s3://bucket: {remedy}")
        return act()

    found = list(check(WatchedStore(MemoryStore(), around)))
    assert [finding.check for finding in found] == CHECKS
    assert {finding.check for finding in found if finding.problem} == broken
    assert all(remedy in finding.problem for finding in found if finding.problem)


class Heedless(MemoryStore):
    """Ignores the condition where an upload in parts ends."""

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:  # noqa: ARG002
        super().put_stream(key, blocks, size)


def test_a_condition_that_is_ignored_for_large_objects_is_a_warning() -> None:
    (found,) = (one for one in check(Heedless()) if one.problem)
    assert (found.check, found.fatal) == ("conditional write of a large object", False)
    assert "If-None-Match: * is ignored where an upload in parts ends" in found.problem


def test_a_clock_is_no_reason_to_refuse_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.open_store", lambda *_: Late())
    assert main(["store-check", str(tmp_path)]) == 0
    assert "warning  clock: the store's clock is 600 s behind" in capsys.readouterr().out


def test_the_command_says_what_it_has_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store-check", str(tmp_path)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ok"] * len(CHECKS)
    assert main(["store-check", "--json", str(tmp_path)]) == 0
    found = [CheckResult(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [finding.check for finding in found] == CHECKS
    (tmp_path / "file").touch()
    assert main(["store-check", str(tmp_path / "file" / "root")]) == 1
    assert "FAILED   write and read" in capsys.readouterr().out
