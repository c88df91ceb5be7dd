"""What a script's variables hold is seen by name, and nothing of it is kept or changed.

The scripts here assert nothing themselves: pytest's asserts ask for `locals()`, and who does is left alone.
"""

import weakref
from typing import Any

import torch

from perdure.state.variables import variables


class Holder:
    def __init__(self) -> None:
        self.dice = torch.Generator()


def names() -> list[str]:
    return [name for name, _ in variables() if name.startswith("script")]


def holding() -> tuple[list[str], bool]:
    script_dice, script_batch = torch.Generator(), Holder()
    made, found = weakref.ref(script_batch), names()
    del script_batch
    return found, script_dice is not None and made() is not None


def asking() -> dict[str, Any]:
    script_rate = 0.1
    settings = locals()
    script_later = script_rate * 2
    return settings if script_later and not names() else {}


def test_variables_and_their_attributes_have_names_and_are_not_kept_alive() -> None:
    assert holding() == (["script_dice", "script_batch", "script_batch.dice"], False)


def test_the_copy_that_a_script_has_asked_for_is_left_as_it_was() -> None:
    assert asking() == {"script_rate": 0.1}


def test_what_the_interpreter_sets_in_a_module_is_none_of_the_scripts_variables() -> None:
    found: list[str] = []
    script: dict[str, Any] = {"__name__": "script", "variables": variables, "found": found}
    script["script_dice"] = torch.Generator()
    script |= {"__loader__": Holder(), "__spec__": Holder(), "__builtins__": {"list": list, "held": Holder()}}
    exec(compile("found += [name for name, _ in variables()]", "script.py", "exec"), script)  # noqa: S102
    assert [name for name in found if name.endswith("dice")] == ["script_dice"]
