"""What a field of a status stands for that is not stored, by its model and its name.

python -m tests.unit.compat.status_defaults --write    record the defaults of new fields; those of others stay
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

from perdure_operator.api import status
from perdure_operator.api.model import TolerantModel

FILE: Final = Path(__file__).parent / "recorded" / "status-defaults.json"


def recorded() -> dict[str, Any]:
    """As they were when their fields were new."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def defaults() -> dict[str, Any]:
    """As they are now."""
    kinds = (one for one in vars(status).values() if isinstance(one, type) and issubclass(one, TolerantModel))
    fields = ((kind, name, field) for kind in kinds for name, field in kind.model_fields.items())
    return {
        f"{kind.__name__}.{name}": to_jsonable_python(field.get_default(call_default_factory=True))
        for kind, name, field in fields
        if not field.is_required()
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FILE.write_text(json.dumps(defaults() | recorded(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
