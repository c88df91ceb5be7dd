"""How a loop was left, and how a module has ended: each way that a script can write, in the running Python."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from perdure.session.loop_exit import Departure, departure, loop

Loop = Callable[[], Iterator[int]]


class Watched:
    """A loop that notes how it was left."""

    def __init__(self) -> None:
        self.left: list[Departure] = []

    def __call__(self) -> Iterator[int]:
        for number in range(3):
            consumer = loop()
            try:
                yield number
            except GeneratorExit:
                self.left.append(departure(consumer))
                raise


def breaks(numbers: Loop) -> None:
    for number in numbers():
        if number == 1:
            break


def breaks_with_a_guard(numbers: Loop) -> None:
    for _ in numbers():
        with contextlib.suppress(ValueError):
            break


def breaks_in_finally(numbers: Loop) -> None:
    for _ in numbers():
        try:
            print(end="")
        finally:
            break  # noqa: B012


def breaks_in_a_handler(numbers: Loop) -> None:
    for number in numbers():
        try:
            raise ValueError(number)
        except ValueError:
            break


def returns(numbers: Loop) -> int:
    for number in numbers():
        return number
    return 9


def returns_what_it_computes(numbers: Loop) -> str:
    for number in numbers():
        return f"{number}"
    return ""


def goes_on(numbers: Loop) -> None:
    for _ in itertools.repeat(None, 2):
        for number in numbers():
            if number:
                break
        else:
            continue
        break


def raises(numbers: Loop) -> None:
    with contextlib.suppress(ValueError):
        for number in numbers():
            raise ValueError(number)


def calls_what_raises(numbers: Loop) -> None:
    with contextlib.suppress(ValueError):
        for _ in numbers():
            int("a")


def divides_by_zero(numbers: Loop) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for number in numbers():
            print(1 // number)


def exits(numbers: Loop) -> None:
    with contextlib.suppress(SystemExit):
        for _ in numbers():
            sys.exit()


def looks_up_nothing(numbers: Loop) -> None:
    with contextlib.suppress(NameError):
        for _ in numbers():
            print(nowhere)  # type: ignore[name-defined]  # noqa: F821


def asserts(numbers: Loop) -> None:
    with contextlib.suppress(AssertionError):
        for number in numbers():
            assert number, "0"


def raises_in_a_handler(numbers: Loop) -> None:
    with contextlib.suppress(KeyError):
        for number in numbers():
            try:
                raise ValueError(number)
            except ValueError as error:
                raise KeyError(number) from error


def drops_a_kept_iterator(numbers: Loop) -> None:
    kept = numbers()
    with contextlib.suppress(ValueError):
        for number in kept:
            raise ValueError(number)
    del kept


@pytest.mark.parametrize(
    ("leave", "how"),
    [
        (breaks, Departure.BREAK),
        (breaks_with_a_guard, Departure.BREAK),
        (breaks_in_finally, Departure.BREAK),
        (breaks_in_a_handler, Departure.BREAK),
        (returns, Departure.BREAK),
        (returns_what_it_computes, Departure.BREAK),
        (goes_on, Departure.BREAK),
        (raises, Departure.RAISED),
        (calls_what_raises, Departure.RAISED),
        (divides_by_zero, Departure.RAISED),
        (exits, Departure.RAISED),
        (looks_up_nothing, Departure.RAISED),
        (asserts, Departure.RAISED),
        (raises_in_a_handler, Departure.RAISED),
        (drops_a_kept_iterator, Departure.UNKNOWN),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_loop_tells_how_it_was_left(leave: Callable[[Loop], object], how: Departure) -> None:
    watched = Watched()
    leave(watched)
    assert watched.left == [how]


END = """
import atexit, sys
from perdure.session.loop_exit import has_ended, main_frame

def begin():
    frame = main_frame()
    atexit.register(lambda: print(has_ended(frame)))

begin()
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ("pass", True),
        ("x = [n for n in range(3)]", True),
        ("raise SystemExit(3)", False),
        ("raise SystemExit", False),
        ("exit(3)", False),
        ("1 / 0", False),
    ],
)
def test_a_main_module_tells_whether_it_came_to_its_end(last: str, ended: bool) -> None:
    done = subprocess.run([sys.executable, "-c", END, last], check=False, capture_output=True, text=True)
    assert done.stdout == f"{ended}\n"
