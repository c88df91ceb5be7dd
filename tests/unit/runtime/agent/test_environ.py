"""What a trainer finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent.environ import ProcessIdentity, process_environment
from perdure.wire import Train

RUN1 = Train(1, 2, 6, "10.0.0.1:29500")


def place(**more: int | None) -> ProcessIdentity:
    given = {"local_rank": 1, "processes": 2, "cpus": 8} | more
    return ProcessIdentity(
        **given,  # type: ignore[arg-type]
        report_fd=5,
        request_file=Path("request.json"),
        handover_file=Path("handover.json"),
        started=12.5,
    )


def test_ranks_count_from_the_members_first() -> None:
    found = process_environment({}, RUN1, place())
    assert (found["RANK"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["WORLD_SIZE"]) == (
        "3",
        "1",
        "2",
        "6",
    )


def test_an_ipv6_master_loses_its_brackets() -> None:
    found = process_environment({}, Train(1, 0, 2, "[fd00::1]:29500"), place())
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("fd00::1", "29500")


@pytest.mark.parametrize(
    ("cpus", "base", "threads"),
    [(8, {}, "4"), (1, {}, "1"), (None, {}, None), (8, {"OMP_NUM_THREADS": "2"}, "2")],
)
def test_threads_follow_the_cpu_limit_unless_the_user_has_set_them(
    cpus: int | None, base: dict[str, str], threads: str | None
) -> None:
    assert process_environment(base, RUN1, place(cpus=cpus)).get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("base", "options"), [({}, "timeout:1 attempts:4"), ({"RES_OPTIONS": "rotate"}, "rotate")], ids=["unset", "set"]
)
def test_a_name_server_is_asked_again_soon_unless_the_user_has_set_how(base: dict[str, str], options: str) -> None:
    assert process_environment(base, RUN1, place())["RES_OPTIONS"] == options
