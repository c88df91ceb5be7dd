"""The generated files are what the models say now, and the commands that write and check them tell the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from perdure_operator.api.reasons import CONDITION_TYPES, REASONS, ConditionType, Reason
from perdure_operator.api.signal_rows import REACTIONS, Reaction, SignalRow
from perdure_operator.schema import crd, generated, reference_page, signals_page

REPOSITORY = Path(__file__).parents[4]


@pytest.mark.parametrize("file", crd.FILES, ids=str)
def test_the_crd_in_the_repository_is_the_models(file: Path) -> None:
    assert (REPOSITORY / file).read_text(encoding="utf-8") == crd.text(), f"run `{crd.COMMAND} --write`"


@pytest.mark.parametrize("file", reference_page.FILES, ids=str)
def test_the_reference_in_the_repository_is_the_models_and_reasons(file: Path) -> None:
    assert (REPOSITORY / file).read_text(encoding="utf-8") == reference_page.text(), (
        f"run `{reference_page.COMMAND} --write`"
    )


@pytest.mark.parametrize("file", signals_page.FILES, ids=str)
def test_the_page_of_signals_in_the_repository_is_the_table(file: Path) -> None:
    assert (REPOSITORY / file).read_text(encoding="utf-8") == signals_page.text(), (
        f"run `{signals_page.COMMAND} --write`"
    )


def test_the_page_of_signals_tells_every_row_reaction_and_field() -> None:
    rows = {line.split("`")[1] for line in signals_page.text().splitlines() if line.startswith("| `")}
    assert rows >= {row.name for row in DEFAULT_SIGNALS} | {word.value for word in Reaction}
    assert rows >= {field.alias for field in SignalRow.model_fields.values()}
    assert set(REACTIONS) == set(Reaction)
    assert all(
        row.url.startswith(("https://", "reports.md#")) and row.set_by and row.warning for row in DEFAULT_SIGNALS
    )


def test_the_reference_tells_every_field_condition_and_reason() -> None:
    rows = {line.split("`")[1] for line in reference_page.text().splitlines() if line.startswith("| `")}
    assert rows >= {condition.value for condition in ConditionType} | {reason.value for reason in Reason}
    assert rows >= {path for path, _, _ in reference_page.fields(crd.status_schema()) if not path.endswith("[]")}
    assert rows >= {"replicas", "checkpoint.s3.credentialsSecret", "failure.lostNodeSeconds", "spec.containers"}


def test_every_condition_and_every_reason_is_explained() -> None:
    assert set(CONDITION_TYPES) == set(ConditionType)
    assert set(REASONS) == set(Reason)


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    columns = 0
    for line in (reference_page.text() + signals_page.text()).splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        cells = line.count("|")
        columns = columns or cells
        assert cells == columns, line


def test_write_makes_the_files_and_check_finds_the_stale_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "a" / "one.yaml", tmp_path / "b" / "two.yaml"]
    assert generated.main("make it", lambda: "new\n", files, ["--check"]) == 1
    assert generated.main("make it", lambda: "new\n", files, ["--write"]) == 0
    assert generated.main("make it", lambda: "new\n", files, ["--check"]) == 0
    files[1].write_text("old\n")
    capsys.readouterr()
    assert generated.main("make it", lambda: "new\n", files, ["--check"]) == 1
    assert capsys.readouterr().err == f"{files[1]} is not what the models say: run `make it --write`\n"


def test_without_an_option_the_text_is_printed_and_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generated.main("make it", lambda: "text\n", [tmp_path / "file"], []) == 0
    assert capsys.readouterr().out == "text\n"
    assert list(tmp_path.iterdir()) == []
