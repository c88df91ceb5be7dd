"""Rows in a user's file: an error is reported in one line, and the commands show the rows in force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.errors import UserError
from perdure_operator.api.configured import read_rows
from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.cli.main import main
from perdure_operator.state.signal_table import merged
from tests.unit.operator.test_announcements import PODS, WRITTEN, node

OURS = {"name": "ours", "source": "NodeCondition", "key": "GpuBroken", "reaction": "Vacate"}


def file(tmp_path: Path, rows: object) -> Path:
    path = tmp_path / "signals.yaml"
    path.write_text(rows if isinstance(rows, str) else yaml.safe_dump(rows))
    return path


def refused(path: Path) -> str:
    with pytest.raises(UserError) as told:
        read_rows(path)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_row_of_ones_own_is_read(tmp_path: Path) -> None:
    ours = SignalRow(name="ours", source=SignalSource.CONDITION, key="GpuBroken", reaction=Reaction.VACATE)
    assert read_rows(file(tmp_path, [OURS])) == (ours,)
    assert merged((ours,)) == (ours, *DEFAULT_SIGNALS)


def test_a_shipped_row_is_changed_by_its_name_alone(tmp_path: Path) -> None:
    (changed,) = read_rows(file(tmp_path, [{"name": "nvsentinel-gpu", "enabled": True}]))
    (shipped,) = (row for row in DEFAULT_SIGNALS if row.name == "nvsentinel-gpu")
    assert changed == shipped.model_copy(update={"enabled": True})
    assert [row.name for row in merged((changed,))] == [row.name for row in DEFAULT_SIGNALS]


def test_a_deadline_goes_with_the_reaction_that_has_one(tmp_path: Path) -> None:
    rows = [
        {"name": "aws-spot-interruption", "reaction": "Vacate"},
        {"name": "gke-scheduled-maintenance", "deadlineSeconds": 3600, "enabled": True},
        {"name": "karpenter", "deadlineSeconds": 600},
    ]
    spot, maintenance, karpenter = read_rows(file(tmp_path, rows))
    assert (karpenter.deadline_seconds, karpenter.deadline_in_claim) == (600, False)
    assert (spot.reaction, spot.deadline_seconds) == (Reaction.VACATE, None)
    assert (maintenance.deadline_seconds, maintenance.deadline_in_value) == (3600, False)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {**OURS, "reaction": "Leave"},
            ["signals[1] (ours), field reaction", "'Vacate'", "and is 'Leave': correct it"],
        ),
        ({**OURS, "name": "Our Own"}, ["signals[1] (Our Own), field name", "pattern"]),
        (
            {**OURS, "colour": "red"},
            ["field colour: there is no such field: remove it, or use one of name, source, key"],
        ),
        ({"name": "cordn", "enabled": False}, ["field source: it is missing", "one of node-deletion, ", ", cordon"]),
        ({"source": "Taint"}, ["signals[1] (without a name), field name: it is missing: give the row its own name"]),
        ({**OURS, "key": ""}, ["key is missing: say which NodeCondition it is"]),
        (
            {"name": "a", "source": "Taint", "key": "a", "effect": "NoSchedul", "reaction": "Vacate"},
            ["effect 'NoSchedul' is no effect of a taint: say NoSchedule, PreferNoSchedule or NoExecute"],
        ),
        ({**OURS, "value": "true"}, ["value 'true' is no status of a condition", '"False" or "Unknown"']),
        (
            {**OURS, "source": "PodCondition", "key": "ContainersReady"},
            ["condition ContainersReady is True of every pod that is well: set value"],
        ),
        ({**OURS, "key": "Ready"}, ["condition Ready is True on every node that is well: set value"]),
        (
            {"name": "gke-scheduled-maintenance", "value": "soon", "enabled": True},
            ["value is the deadline where deadlineInValue is set"],
        ),
        ({**OURS, "reaction": "Fault"}, ["ours matches what first matches, which comes first: remove one of them"]),
        ({**OURS, "effect": "NoExecute"}, ["effect is for the source Taint: remove it"]),
        (
            {**OURS, "source": "Label", "reasons": ["Ecc"]},
            ["reasons are for the sources NodeCondition and PodCondition: remove them"],
        ),
        ({**OURS, "reasons": [""]}, ["reasons has an empty word: remove it"]),
        ({**OURS, "reasons": "Ecc"}, ["signals[1] (ours), field reasons", "and is 'Ecc': correct it"]),
        ({**OURS, "source": "PodCondition", "reaction": "Avoid"}, ["reaction Avoid is for what a node shows"]),
        ({**OURS, "reaction": "GiveUp"}, ["reaction GiveUp is for the source Silence", "lostNodeSeconds"]),
        ({"name": "node-silence", "enabled": False}, ["enabled cannot be false for the source Silence"]),
        ({"name": "node-silence", "reaction": "Ignore"}, ["reaction GiveUp is for the source Silence"]),
        ({**OURS, "reaction": "VacateByDeadline"}, ["set one of deadlineSeconds, deadlineInValue and deadlineInClaim"]),
        ({**OURS, "deadlineSeconds": 5}, ["are for the reaction VacateByDeadline: remove them"]),
        (
            {**OURS, "reaction": "VacateByDeadline", "deadlineInValue": True},
            ["deadlineInValue is for the sources Label and Annotation: use deadlineSeconds"],
        ),
        (
            {**OURS, "reaction": "VacateByDeadline", "deadlineInClaim": True},
            ["deadlineInClaim is for the source Taint: use deadlineSeconds"],
        ),
        (
            {"name": "karpenter", "deadlineInClaim": True, "deadlineSeconds": 60},
            ["set one of deadlineSeconds, deadlineInValue and deadlineInClaim"],
        ),
        ({**OURS, "reaction": "VacateByDeadline", "deadlineSeconds": 0}, ["field deadlineSeconds", "and is 0"]),
        ({"name": "cordon", "source": "Taint", "key": "a"}, ["source of cordon is Cordon", "another name"]),
        ({"name": "mine", "source": "Cordon", "reaction": "Ignore"}, ["source Cordon has one row", "its name, cordon"]),
        ({**OURS, "name": "first"}, ["name first is there twice: keep one of them"]),
    ],
)
def test_a_wrong_row_names_row_field_and_remedy(row: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    told = refused(file(tmp_path, [{**OURS, "name": "first"}, row]))
    assert told.startswith(str(tmp_path / "signals.yaml"))
    for word in words:
        assert word in told


@pytest.mark.parametrize(("text", "words"), [("a: [", "not YAML"), ("cordon", "a list"), ("[cordon]", "a list")])
def test_a_file_that_is_no_list_of_rows_is_reported(text: str, words: str, tmp_path: Path) -> None:
    assert words in refused(file(tmp_path, text))


def test_a_wrong_row_stops_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, [{**OURS, "reaction": "Leave"}])
    assert main(["run", "--signals", str(path)]) == 2
    assert "field reaction" in capsys.readouterr().err


def test_the_table_in_force_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, [OURS, {"name": "cordon", "reaction": "Ignore"}])
    assert main(["signals", "--signals", str(path)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(rows) == ["NAME", "ours", *(row.name for row in DEFAULT_SIGNALS)]
    assert rows["cordon"].split()[1:4] == ["Cordon", "-", "Ignore"]
    assert "VacateByDeadline(120 s)" in rows["aws-spot-interruption"]
    assert "Fault, disabled" in rows["nvsentinel-gpu"]


def test_a_nodes_yaml_is_tried_against_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump(WRITTEN["aws-spot-interruption"]))
    assert main(["signals", "--node", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["aws-spot-interruption", "cordon"]
    assert "AWS takes the spot instance of node n1: VacateByDeadline(120 s): as Vacate" in said[0]


def test_a_pods_yaml_is_tried_against_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = file(tmp_path, [{"name": "device-unhealthy", "enabled": True}])
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(PODS["device-unhealthy"]))
    assert main(["signals", "--pod", str(path)]) == 0
    assert "shows nothing that an enabled row is about" in capsys.readouterr().out
    assert main(["signals", "--signals", str(rows), "--pod", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("device-unhealthy: digits-ab12-0: nvidia.com/gpu GPU-1 is Unhealthy: Fault: ")


def test_a_node_is_not_taken_for_a_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump(node()))
    assert main(["signals", "--pod", str(path)]) == 2
    assert "not a Pod: make it with kubectl get pod NAME -o yaml" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["node-silence", "no-execute"])
def test_it_says_what_else_is_to_be_known(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(WRITTEN[name]))
    assert main(["signals", "--node", str(path)]) == 0
    words = {"node-silence": "failure.lostNodeSeconds", "no-execute": "a member that tolerates a taint is not moved"}
    assert words[name] in capsys.readouterr().out


def test_a_healthy_node_announces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump(node()))
    assert main(["signals", "--node", str(path)]) == 0
    assert "node n1 shows no enabled signal: members stay" in capsys.readouterr().out


NODES = "kind: Node\nmetadata: {name: n1}\n"


@pytest.mark.parametrize(
    "text",
    [
        "kind: Pod",
        "[]",
        "kind: Node",
        "kind: Node\nmetadata: {name: 5}",
        NODES + "spec: {taints: [spot]}",
        NODES + "spec: {taints: [{key: spot}]}",
        NODES + "status: {conditions: {Ready: yes}}",
    ],
)
def test_what_is_no_node_is_reported(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    assert main(["signals", "--node", str(path)]) == 2
    assert "kubectl get node NAME -o yaml" in capsys.readouterr().err
