"""docs/migrate.md says of each field what the tables do."""

from __future__ import annotations

import pytest

from perdure_operator.cli.convert import tables
from perdure_operator.cli.convert.fields import FieldTable, rows
from tests.unit.test_layout import REPOSITORY

PAGE = (REPOSITORY / "docs" / "migrate.md").read_text()


TABLES: dict[str, FieldTable] = {
    name: one for name, one in vars(tables).items() if name.isupper() and isinstance(one, dict)
}
BELOW = {"METADATA": "metadata", "JOB_SPEC": "spec", "JOBSET_SPEC": "spec"}
"""Tables that are a part of others, and where."""


@pytest.mark.parametrize("name", [name for name in TABLES if not name.startswith("_")])
def test_the_page_has_each_row_of_each_table(name: str) -> None:
    lines = {f"| `{field}` | {to} |" for field, to in rows(TABLES[name], BELOW.get(name, ""))}
    assert lines - set(PAGE.splitlines()) == set()


def test_the_page_has_no_row_that_no_table_has() -> None:
    known = {f"| `{field}` | {to} |" for table in TABLES.values() for field, to in rows(table)}
    tables_alone = PAGE[PAGE.index("## Every object") :]
    assert {line for line in tables_alone.splitlines() if line.startswith("| `")} - known == set()
