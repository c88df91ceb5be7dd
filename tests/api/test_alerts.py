"""Each alert of the chart fires for its reason, and none fires for a healthy operator or a change of the leader.

Debian's promtool evaluates the rules over series that are written here.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure_operator.serving.metrics import exposition, jobs
from perdure_operator.serving.metrics.counted import Frozen
from tests.api.conftest import REPOSITORY
from tests.support.full_status import FULL
from tests.unit.operator.serving.metrics.test_jobs import record
from tests.unit.operator.serving.metrics.test_operator import FACTS

ALERTS = REPOSITORY / "helm" / "perdure" / "alerts.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]
HOURS = 120
"""Minutes that each story lasts."""

Series = dict[str, str]
JOB = 'namespace="team", name="digits"'


def operator(pod: str, *, leading: str) -> Series:
    """A replica's own series; `leading` in promtool's notation."""
    of = f'instance="{pod}"'
    return {
        f"perdure_operator_info{{{of}}}": f"1x{HOURS}",
        f"perdure_operator_leading{{{of}}}": leading,
        f"perdure_operator_synced{{{of}}}": leading,
        f"perdure_operator_queue_oldest_seconds{{{of}}}": f"0x{HOURS}",
        f"perdure_operator_watch_lag_seconds{{{of}}}": f"0x{HOURS}",
        f'perdure_operator_rounds_total{{{of}, outcome="error"}}': f"0x{HOURS}",
    }


def job(pod: str, values: str) -> Series:
    """A healthy job's series as one replica shows them. `values` is promtool's notation with {} for the value."""
    of = f'instance="{pod}", {JOB}'
    constant = {
        f'perdure_job_condition{{{of}, type="Running"}}': 1,
        f'perdure_job_condition{{{of}, type="Failed"}}': 0,
        f'perdure_job_condition{{{of}, type="Progressing"}}': 1,
        f'perdure_job_condition{{{of}, type="StorageReachable"}}': -1,
        f'perdure_job_failures_total{{{of}, cause="code"}}': 2,
        f'perdure_job_failures_total{{{of}, cause="infrastructure"}}': 40,
        f'perdure_job_failure_budget_used_ratio{{{of}, budget="code"}}': 0.25,
        f"perdure_job_steps_lost{{{of}}}": 1000,
    }
    return {name: values.format(value) for name, value in constant.items()}


HEALTHY = operator("a", leading=f"1x{HOURS}") | operator("b", leading=f"0x{HOURS}") | job("a", f"{{}}x{HOURS}")


@dataclass(frozen=True)
class Story:
    """These series instead of the healthy ones; the alert is silent at the first minute and fires at the second."""

    alert: str
    series: Series
    silent: int
    fires: int
    labels: str = ""
    without: str = "no series"
    """A pattern of healthy series that are not there."""


OF = f'instance="a", {JOB}'
STORIES = (
    Story("PerdureOperatorDown", {}, 4, 6, without="perdure_"),
    Story("PerdureNoLeader", {'perdure_operator_leading{instance="a"}': f"1x9 0x{HOURS}"}, 9, 13),
    Story("PerdureNotSynced", {'perdure_operator_synced{instance="a"}': f"1x9 0x{HOURS}"}, 13, 17),
    Story(
        "PerdureQueueStuck",
        {'perdure_operator_queue_oldest_seconds{instance="a"}': f"59x9 61+60x{HOURS}"},
        13,
        17,
    ),
    Story("PerdureWatchStuck", {'perdure_operator_watch_lag_seconds{instance="a"}': f"0+60x{HOURS}"}, 4, 6),
    Story(
        "PerdureOperatorFault",
        {'perdure_operator_rounds_total{instance="a", outcome="error"}': f"0x9 1x{HOURS}"},
        9,
        11,
    ),
    Story(
        "PerdureDrainBlocked",
        {f'perdure_job_disruption_start_timestamp_seconds{{{OF}, disruption="NodeLeaving"}}': f"600x{HOURS}"},
        25,
        28,
        JOB,
    ),
    Story(
        "PerdureHandoverSlow",
        {f"perdure_job_handover_start_timestamp_seconds{{{OF}}}": f"600x{HOURS}"},
        25,
        28,
        JOB,
    ),
    Story("PerdureJobFailed", {f'perdure_job_condition{{{OF}, type="Failed"}}': f"0x9 1x{HOURS}"}, 9, 11, JOB),
    Story("PerdureJobUnreadable", {f"perdure_job_unreadable{{{OF}}}": f"_x9 1x{HOURS}"}, 13, 16, JOB),
    Story(
        "PerdureFailureBudgetNearlySpent",
        {f'perdure_job_failure_budget_used_ratio{{{OF}, budget="code"}}': f"0.5x9 0.75x{HOURS}"},
        9,
        11,
        f'{JOB}, budget="code"',
    ),
    Story(
        "PerdureStorageNeedsYou",
        {f'perdure_job_waiting{{{OF}, reason="StorageRefused"}}': f"_x9 1x{HOURS}"},
        10,
        14,
        f'{JOB}, reason="StorageRefused"',
    ),
    Story(
        "PerdureJobWaits",
        {f'perdure_job_waiting{{{OF}, reason="Unschedulable"}}': f"_x9 1x{HOURS}"},
        38,
        42,
        JOB,
    ),
    *(
        Story(alert, {f'perdure_job_condition{{{OF}, type="{kind}"}}': f"1x4 -1x4 0x{HOURS}"}, silent, fires, JOB)
        for alert, kind, silent, fires in (
            ("PerdureNoProgress", "Progressing", 10, 14),
            ("PerdureSavesFail", "StorageReachable", 18, 22),
            ("PerdureCheckpointStale", "CheckpointFresh", 10, 14),
        )
    ),
    Story(
        "PerdureRunsFailOften",
        {f'perdure_job_failures_total{{{OF}, cause="code"}}': f"2x59 4x9 5x{HOURS}"},
        68,
        75,
        JOB,
    ),
    Story("PerdureStepsLost", {f"perdure_job_steps_lost{{{OF}}}": f"1000x19 1020x{HOURS}"}, 19, 21, JOB),
)
LEADS_UNTIL_50 = (
    operator("a", leading=f"1x49 stale _x{HOURS}")
    | operator("b", leading=f"0x50 1x{HOURS}")
    | job("a", f"{{}}x49 stale _x{HOURS}")
    | job("b", f"_x50 {{}}x{HOURS}")
)
"""A leader is gone at minute 50, and the other replica shows the same from minute 51 on."""


def judged(
    promtool: Path,
    folder: Path,
    series: Series,
    expected: dict[int, set[str]],
    told: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Expect exactly these firing alerts at these minutes, as their labels in PromQL, and these texts of alerts."""
    fires = [
        {
            "expr": 'sum without (severity, alertstate) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f"{{{labels}}}", "value": 1} for labels in sorted(alerts)],
        }
        for minute, alerts in expected.items()
    ]
    story = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": fires,
        "alert_rule_test": list(told),
    }
    file = folder / "story.yaml"
    whole = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [story]}
    file.write_text(json.dumps(whole))  # JSON is YAML
    done = subprocess.run([promtool, "test", "rules", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules(promtool: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", ALERTS], check=False, capture_output=True, text=True)
    assert (done.returncode, f"{len(NAMES)} rules found" in done.stdout) == (0, True), done.stdout + done.stderr


def test_promtool_has_no_complaint_about_the_series(promtool: Path) -> None:
    text = exposition.text(Frozen(FACTS, (record(FULL),)))
    done = subprocess.run([promtool, "check", "metrics"], check=False, capture_output=True, input=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.alert)
def test_an_alert_fires_for_its_reason_and_not_before(promtool: Path, tmp_path: Path, story: Story) -> None:
    series = {name: values for name, values in HEALTHY.items() if not name.startswith(story.without)} | story.series
    labels = ", ".join(filter(None, [f'alertname="{story.alert}"', story.labels]))
    judged(promtool, tmp_path, series, {story.silent: set(), story.fires: {labels}})


def test_every_alert_has_a_story() -> None:
    assert [story.alert for story in STORIES] == NAMES


def test_a_healthy_operator_fires_nothing(promtool: Path, tmp_path: Path) -> None:
    judged(promtool, tmp_path, HEALTHY, {minute: set() for minute in range(0, HOURS, 5)})


def test_a_change_of_the_leader_fires_nothing(promtool: Path, tmp_path: Path) -> None:
    judged(promtool, tmp_path, LEADS_UNTIL_50, {minute: set() for minute in range(45, 115)})


def test_a_growing_job_that_waits_for_room_blocks_no_drain(promtool: Path, tmp_path: Path) -> None:
    grows = {f'perdure_job_disruption_start_timestamp_seconds{{{OF}, disruption="SizeChange"}}': f"0x{HOURS}"}
    judged(promtool, tmp_path, HEALTHY | grows, {100: set()})


@pytest.mark.parametrize("reason", ["Suspended", "Completed", "Failed"])
def test_a_job_that_is_not_to_train_fires_nothing(promtool: Path, tmp_path: Path, reason: str) -> None:
    rests = {f'perdure_job_waiting{{{OF}, reason="{reason}"}}': f"1x{HOURS}"}
    judged(promtool, tmp_path, HEALTHY | rests, {100: set()})


def test_a_job_that_waits_for_one_thing_after_another_waits_and_the_text_has_the_newest(
    promtool: Path, tmp_path: Path
) -> None:
    """As one that finds no room for all members, lets the others go and tries again."""
    waits = 'perdure_job_waiting{{{}, reason="{}"}}'
    series = {waits.format(OF, "Unschedulable"): "1x19", waits.format(OF, "GangReleased"): f"_x20 1x{HOURS}"}
    text = {"summary": "team/digits has not trained for 30 minutes; now the reason is GangReleased."}
    runbook = next(rule["annotations"]["runbook"] for rule in RULES if rule["alert"] == "PerdureJobWaits")
    labels = {"namespace": "team", "name": "digits", "severity": "warning"}
    fires = {"exp_labels": labels, "exp_annotations": text | {"runbook": runbook}}
    told = [{"eval_time": "40m", "alertname": "PerdureJobWaits", "exp_alerts": [fires]}]
    judged(promtool, tmp_path, HEALTHY | series, {}, told)


def _query_name(series: jobs.Series) -> str:
    return series.name + ("_total" if series.kind is jobs.SeriesKind.COUNTER else "")


def test_every_alert_reads_series_that_exist_and_says_what_to_do() -> None:
    known = {_query_name(one) for one in jobs.SERIES}
    for rule in RULES:
        of_jobs = set(re.findall(r"perdure_job_\w+", rule["expr"]))
        assert of_jobs <= known, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "runbook"}
        assert rule["annotations"]["runbook"].startswith(f"docs/metrics.md#{rule['alert'].lower()}: ")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_alert_and_every_series_is_documented() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert headings == NAMES
    rows = re.findall(r"^\| `(perdure_job_\w+)` \|", page, re.MULTILINE)
    assert rows == [_query_name(one) for one in jobs.SERIES]
