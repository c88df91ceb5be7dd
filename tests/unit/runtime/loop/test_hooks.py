"""Hooks: which names there are, in which order they are called, and whom a failing one concerns."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from perdure.errors import Fenced, PeerLost, UserError
from perdure.loop.hooks import FATAL, HookName, Hooks

PASSING = sorted(set(HookName) - FATAL)


def failing(error: BaseException) -> Callable[..., None]:
    def sample_hook(*_: object) -> None:
        raise error

    return sample_hook


def test_hooks_of_a_name_are_called_in_the_order_given_with_what_the_moment_has_to_tell() -> None:
    hooks, called = Hooks(), list[object]()
    hooks.add("epoch", lambda epoch: called.append(("first", epoch)))
    hooks.add("epoch", lambda epoch: called.append(("second", epoch)))
    hooks.add("exit", lambda: called.append("exit"))
    hooks.run(HookName.EPOCH, 3)
    assert called == [("first", 3), ("second", 3)]


def test_a_hook_is_given_back_so_that_its_name_stays_the_functions() -> None:
    def announce() -> None: ...

    assert Hooks().add("exit", announce) is announce


def test_only_a_name_that_has_hooks_has_them() -> None:
    hooks = Hooks()
    hooks.add("collect", print)
    assert [name for name in HookName if hooks.has(name)] == [HookName.COLLECT]


def test_an_unknown_name_is_refused_with_the_list() -> None:
    with pytest.raises(UserError, match=r"on\('epochs'\).*init, resumed, epoch, committed, leaving, collect, exit"):
        Hooks().add("epochs", print)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UserError, match=r"on\('exit'\): a int cannot be called"):
        Hooks().add("exit", 3)  # type: ignore[type-var]


@pytest.mark.parametrize("name", PASSING)
def test_a_failing_hook_is_reported_with_its_traceback_and_the_next_one_is_called(
    name: HookName, caplog: pytest.LogCaptureFixture
) -> None:
    hooks, called = Hooks(), list[str]()
    hooks.add(name, failing(ValueError("no such table")))
    hooks.add(name, lambda *_: called.append("second"))
    with caplog.at_level(logging.ERROR, logger="perdure"):
        hooks.run(name, "anything")
    assert called == ["second"]
    assert f"the hook '{name}'" in caplog.text
    assert "sample_hook) failed, training goes on" in caplog.text
    assert "ValueError: no such table" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("name", sorted(FATAL))
def test_a_hook_that_the_result_depends_on_fails_the_script(name: HookName) -> None:
    hooks = Hooks()
    hooks.add(name, failing(ValueError("no such table")))
    with pytest.raises(ValueError, match="no such table") as raised:
        hooks.run(name)
    assert f"in the hook '{name}'" in raised.value.__notes__[0]


@pytest.mark.parametrize("error", [PeerLost("rank 1 is gone"), Fenced("run 3 is there"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("name", PASSING)
def test_what_is_no_fault_of_the_hook_passes_through_it(name: HookName, error: BaseException) -> None:
    hooks = Hooks()
    hooks.add(name, failing(error))
    with pytest.raises(type(error)):
        hooks.run(name, "anything")
