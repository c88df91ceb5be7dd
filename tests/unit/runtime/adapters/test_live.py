"""Members of a training by the Hugging Face Trainer and by Lightning are replaced while it trains: nothing is another.

What an undisturbed training comes to is the judge: its weights, its optimizers, everything that it has logged, the
framework's own counts, and the samples of each rank.
"""

from __future__ import annotations

import selectors
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.agent.kubeflow import KubeflowServer
from tests.unit.runtime.live.jobs import EVERY, WAIT_AT, Job
from tests.unit.runtime.live.nursery import Nursery
from tests.unit.runtime.records import progress

PACKAGE = "tests.unit.runtime.adapters"
MODULES = ("perdure.session.session", "transformers.trainer", "lightning", f"{PACKAGE}.live_trainings")
SECONDS = 300
"""The imports take twenty seconds of a core, and a machine may be busy."""
HF, PL = "live_trainings.hf", "live_trainings.pl"
SCRIPTS = [pytest.param(HF, id="hf"), pytest.param(PL, id="lightning")]
Undisturbed = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path_factory.mktemp("live"), PACKAGE, MODULES, seconds=SECONDS)
    yield nursery
    nursery.close()


def job(nursery: Nursery, name: str, script: str, world: int = 2, **arguments: Any) -> Job:
    environ = {"FOLDER": str(nursery.folder), **arguments.pop("environ", {})}
    return Job(nursery, f"{script[-2:]}-{name}", world, script=script, environ=environ, **arguments)


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery) -> Undisturbed:
    """What a training comes to, by process; trained when it is first asked for."""
    found: dict[str, dict[str, Any]] = {}

    def results(script: str, **arguments: Any) -> dict[str, Any]:
        asked = f"{script} {arguments}"
        if asked not in found:
            found[asked] = job(nursery, f"undisturbed-{len(found)}", script, **arguments).begin().end()
        return found[asked]

    return results


def by_rank(results: Mapping[str, Any]) -> dict[int, Any]:
    """What each rank of the last run has at its end, without what began with its process."""
    own = ("seen", "epochs", "same objects")
    return {
        found["rank"]: {name: value for name, value in found.items() if name not in own}
        for found in results.values()
        if "rank" in found
    }


def seen(results: Mapping[str, Any], *names: str) -> list[Any]:
    """The batches that these processes have trained on, one after the other."""
    return [batch for name in names for batch in results[name]["seen"]]


def opened(job: Job) -> list[tuple[int, int | None]]:
    return [(entry["run"], entry.get("takesOver")) for entry in job.log if entry["kind"] == "Opened"]


REPLACED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "hf-rank-0": (HF, 0, {}),
    "hf-rank-1-and-updates-of-two-batches": (HF, 1, {"gradient_accumulation_steps": 2}),
    "hf-rank-0-of-a-model-that-divides-by-labels": (HF, 0, {"model": "summed"}),
    "lightning-rank-0": (PL, 0, {}),
    "lightning-rank-1-and-steps-of-two-batches": (PL, 1, {"accumulate_grad_batches": 2}),
    "lightning-rank-0-and-two-optimizers": (PL, 0, {"module": "Twin"}),
    "lightning-rank-0-where-an-epoch-begins": (PL, 0, {"count": 6 * 12}),
    "lightning-rank-1-and-validations-within-epochs": (PL, 1, {"val_check_interval": 3}),
    "lightning-rank-1-and-files-of-a-step-that-two-batches-end-in": (
        PL,
        1,
        {"accumulate_grad_batches": 2, "max_steps": 8, "checkpoints": {"every_n_train_steps": 6}},
    ),
    "lightning-rank-1-and-a-last-file": (
        PL,
        1,
        {"max_steps": 8, "checkpoints": {"every_n_train_steps": 6, "save_last": True}},
    ),
    "lightning-rank-0-and-a-file-that-waits-for-a-validation": (
        PL,
        0,
        {"val_check_interval": 7, "checkpoints": {"every_n_train_steps": 6, "monitor": "val"}},
    ),
}
"""The script, the rank that leaves, and the script's arguments."""
SHORT = ("hf-rank-0", "lightning-rank-0")
"""Those of `make test`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.chaos) for name in REPLACED]
)
def test_a_replaced_rank_changes_nothing(nursery: Nursery, undisturbed: Undisturbed, name: str) -> None:
    script, leaver, arguments = REPLACED[name]
    moved = job(nursery, name, script, **arguments).offered(2, (leaver,), (leaver,), at=WAIT_AT).begin()
    results, straight = moved.end(), undisturbed(script, **arguments)
    assert opened(moved) == [(1, None), (2, 1)], moved.output("old0")
    assert results[f"old{leaver}"]["left"] > WAIT_AT
    assert by_rank(results) == by_rank(straight)
    for rank in (0, 1):
        parts = [part for part in (f"old{rank}", f"new{rank}") if part in results]
        assert seen(results, *parts) == seen(straight, f"old{rank}")
    assert all(found["same objects"] for found in results.values() if "rank" in found)


@pytest.mark.parametrize("script", SCRIPTS)
def test_ranks_are_replaced_one_after_the_other(nursery: Nursery, undisturbed: Undisturbed, script: str) -> None:
    moved = job(nursery, "again", script).replaced(1, 0, 1).begin()
    results, straight = moved.end(), undisturbed(script)
    assert opened(moved) == [(1, None), (2, 1), (3, 2), (4, 3)], moved.output("old0")
    assert by_rank(results) == by_rank(straight)
    assert seen(results, "old0", "new3") == seen(straight, "old0")
    assert seen(results, "old1", "new2", "new4") == seen(straight, "old1")
    assert [results[name]["left"] // EVERY for name in ("old1", "old0", "new2")] == [1, 2, 3]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_newcomer_that_is_killed_with_the_state_costs_nothing(
    nursery: Nursery, undisturbed: Undisturbed, script: str
) -> None:
    moved = job(nursery, "killed", script).offered(2, (0,), (0,), die="restored").begin()
    ended = moved.ended()
    assert (ended.pop("new0"), set(ended.values())) == (-signal.SIGKILL, {0})
    results = {name: nursery.result(f"{moved.name}-{name}") for name in ended}
    assert opened(moved) == [(1, None)]
    assert results == undisturbed(script)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_newcomer_begins_in_place_beside_a_rank_that_began_again_if_the_older_run_ends_after_all(
    nursery: Nursery, undisturbed: Undisturbed, script: str
) -> None:
    """The newcomer has a placeholder by then, and has left out what Lightning asks of all ranks before a restore."""
    environ = {"PERDURE_EXIT_AT_STEP": str(WAIT_AT + 1)}
    moved = job(nursery, "ends", script, environ=environ)
    results = moved.offered(2, (1,), (1,), at=WAIT_AT, restarted=(0,)).begin().end()
    assert opened(moved) == [(1, None), (2, None)]
    assert by_rank(results) == by_rank(undisturbed(script))
    assert {name: results[name]["rank"] for name in ("again0", "new1")} == {"again0": 0, "new1": 1}


REFUSED: dict[str, tuple[str, int, dict[str, Any], str]] = {
    "hf-another-size": (HF, 3, {}, "the Hugging Face Trainer keeps the number of ranks that it began with"),
    "lightning-another-size": (PL, 3, {}, "Lightning keeps the number of ranks that it began with"),
    "hf-a-compiled-model": (
        HF,
        2,
        {"torch_compile": True, "torch_compile_backend": "eager"},
        "a DistributedDataParallel that the script has made itself",
    ),
    "hf-a-callback": (HF, 2, {"keeps": "value"}, "of their own: Keeps: a new member's"),
    "hf-a-limit-of-time": (HF, 2, {"keeps": "clock"}, "of their own: Clocked: a new member's"),
    "hf-a-callback-that-keeps-more-than-it-saves": (HF, 2, {"keeps": "more"}, "StopsEarlyAndKeeps: a new member's"),
    "lightning-a-callback": (PL, 2, {"keeps": "value"}, "and keep some: KeepsValue"),
    "lightning-a-callback-that-keeps-more-than-it-saves": (
        PL,
        2,
        {"keeps": "more"},
        "and keep some: StopsEarlyAndKeepsValue",
    ),
    "lightning-a-validation-every-other-epoch": (
        PL,
        2,
        {"check_val_every_n_epoch": 3},
        "check_val_every_n_epoch: between two validations",
    ),
    "lightning-a-validation-by-the-clock": (
        PL,
        2,
        {"module": "Twin", "val_check_interval": "00:00:01:00"},
        "val_check_interval is a time",
    ),
    "lightning-a-preparation": (PL, 2, {"prepares": True}, "prepare_data: a new member would prepare the data"),
    "lightning-a-limit-of-time": (
        PL,
        2,
        {"max_time": "00:01:00:00"},
        "max_time: the others' clock is not a new member's",
    ),
    "hf-a-collective": (HF, 2, {"early": True}, "makes collectives before its first batch"),
    "lightning-a-collective-of-torch": (PL, 2, {"early": "torch"}, "makes collectives before its first batch"),
    "lightning-a-collective-of-the-strategy": (
        PL,
        2,
        {"early": "strategy"},
        "makes collectives before its first batch",
    ),
}
SHORT_REFUSED = (
    "hf-a-callback-that-keeps-more-than-it-saves",
    "lightning-a-callback-that-keeps-more-than-it-saves",
    "lightning-another-size",
    "lightning-a-collective-of-the-strategy",
    "lightning-a-preparation",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT_REFUSED else pytest.mark.chaos) for name in REFUSED]
)
def test_what_cannot_go_over_live_is_refused_with_the_reason_and_goes_on_in_place(
    nursery: Nursery, undisturbed: Undisturbed, name: str
) -> None:
    script, world, arguments, words = REFUSED[name]
    everyone = (0, 1) if world == 2 else (0, 1, 2)
    environ = {"PERDURE_REPORT_FD": "1"}
    refused = job(nursery, name, script, leaves_at=WAIT_AT, environ=environ, **arguments)
    results = refused.offered(world, everyone, (0, 1), wait=False).begin().end()
    assert words in refused.output("old0")
    assert opened(refused) == [(1, None), (2, None)]
    assert {name for name, found in results.items() if "left" in found} == {"old0", "old1"}
    if world == 2:
        assert by_rank(results) == by_rank(undisturbed(script, **arguments))


@contextmanager
def answering(folder: Path) -> Iterator[KubeflowServer]:
    """As an agent does, in a thread."""
    over = threading.Event()
    with selectors.DefaultSelector() as selector:
        server = KubeflowServer(selector)
        server.begin(folder)

        def serve() -> None:
            while not over.is_set():
                selector.select(0.05)
                server.look()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            over.set()
            thread.join()
            server.close()


@pytest.mark.parametrize("joins", [True, False], ids=["it joins live as rank 0", "it resumes"])
def test_beside_kubeflows_callback_progress_stays_what_the_session_knows(
    nursery: Nursery, tmp_path: Path, joins: bool
) -> None:
    """transformers registers its callback by itself, which counts from 0 % in each new process."""
    with answering(tmp_path) as server:
        environ = server.environment({})
        environ |= {} if joins else {"PERDURE_EXIT_AT_STEP": str(WAIT_AT + 1)}
        moved = job(nursery, f"kubeflow-{joins}", HF, environ=environ).told("new0")
        leaver, restarted = (0, ()) if joins else (1, (0,))
        moved.offered(2, (leaver,), (leaver,), at=WAIT_AT, restarted=restarted)
        results = moved.begin().end()
    name = "new0" if joins else "again0"
    assert opened(moved) == [(1, None), (2, 1 if joins else None)], moved.output(name)
    assert results[name]["rank"] == 0
    told, steps = progress(moved.output(name)), results[name]["state"]["global_step"]
    assert any(done < 1 for _, _, done in told), moved.output(name)
    assert all(step > 0 and abs(done - step / steps) <= 1 / steps for _, step, done in told), told
    assert "loss" in server.values


ALONE = [
    pytest.param(HF, "the Hugging Face Trainer on one rank has a process group of accelerate's own", id="hf"),
    pytest.param(PL, "Lightning changes its ranks live among two and more", id="lightning"),
]


@pytest.mark.parametrize(("script", "words"), ALONE)
def test_one_rank_is_told_to_keep_its_size(nursery: Nursery, script: str, words: str) -> None:
    alone = job(nursery, "alone", script, world=1, environ={"PERDURE_REPORT_FD": "1"}).begin()
    alone.end()
    assert words in alone.output("old0")
