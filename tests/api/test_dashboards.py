"""The chart's Grafana dashboards: a real Prometheus answers each query, and the chart gives Grafana's sidecar both."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from helm.dashboards import FOLDER
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.serving.metrics import exposition
from perdure_operator.serving.metrics.counted import Frozen
from perdure_operator.serving.metrics.jobs import SERIES, SeriesKind
from tests.api.conftest import REPOSITORY
from tests.api.prometheus import Prometheus, started
from tests.api.scene import until
from tests.support.full_status import FULL
from tests.unit.operator.serving.metrics.test_jobs import condition, record
from tests.unit.operator.serving.metrics.test_operator import FACTS

PAGES: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
QUERIES = [
    pytest.param(target["expr"], id=f"{name}-{panel['title']}-{target['refId']}")
    for name, page in PAGES.items()
    for panel in page["panels"]
    for target in panel.get("targets", ())
]
CHOSEN = {"$namespace": ".*", "$name": ".*", "$instance": ".*", "$__rate_interval": "20s", "$__range": "2s"}
"""What Grafana writes for its variables."""
TRAINS = TrainingJobStatus(
    conditions=(condition("Running", "True", "Training"), condition("Progressing", "True", "Advances"))
)
WAITS = TrainingJobStatus(conditions=(condition("Running", "False", "Unschedulable"),))
FAILED = TrainingJobStatus(conditions=(condition("Failed", "True", "CodeFailures"),))


class Handler(BaseHTTPRequestHandler):
    """Answers as an operator does that leads and has a job of each kind."""

    def do_GET(self) -> None:
        jobs = tuple(record(status) for status in (FULL, TRAINS, WAITS, FAILED))
        named = tuple(replace(one, key=(one.key[0], f"job{number}")) for number, one in enumerate(jobs))
        text = exposition.text(Frozen(FACTS, named))
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        target = f"127.0.0.1:{server.server_address[1]}"
        scraped = {"job_name": "perdure", "honor_labels": True, "static_configs": [{"targets": [target]}]}
        yield stack.enter_context(started(tmp_path_factory.mktemp("prometheus"), scraped))


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_every_panel_answers(prometheus: Prometheus, query: str) -> None:
    """Also where a panel shows zero for no answer."""
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    assert "$" not in query
    until("an answer", lambda: prometheus.query(query.removesuffix(" or vector(0)")))


def told(promtool: Path, folder: Path, title: str, series: dict[str, str], value: float) -> None:
    """Expect this number of the panel after two hours, by series in promtool's notation, a minute a value."""
    (panel,) = (one for one in PAGES["jobs"]["panels"] if (one["title"], one["type"]) == (title, "stat"))
    query = panel["targets"][0]["expr"]
    for variable, chosen in (CHOSEN | {"$__range": "1h"}).items():
        query = query.replace(variable, chosen)
    asked = {"expr": query, "eval_time": "2h", "exp_samples": [{"labels": "{}", "value": value}]}
    given = [{"series": name, "values": values} for name, values in series.items()]
    story = {"interval": "1m", "input_series": given, "promql_expr_test": [asked]}
    (folder / "story.yaml").write_text(json.dumps({"tests": [story]}))  # JSON is YAML
    argv = [str(promtool), "test", "rules", str(folder / "story.yaml")]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def of(series: str, name: str, more: str = "") -> str:
    return f'perdure_job_{series}{{instance="a", namespace="team", name="{name}"{more}}}'


def test_a_job_that_hangs_is_none_that_trains(promtool: Path, tmp_path: Path) -> None:
    running, progressing = ', type="Running"', ', type="Progressing"'
    jobs = {"silent": None, "unknown": -1, "advances": 1, "hangs": 0}
    series = {of("condition", name, running): "1x120" for name in jobs}
    series |= {of("condition", name, progressing): f"{value}x120" for name, value in jobs.items() if value is not None}
    told(promtool, tmp_path, "Jobs that train", series, 3)


def test_a_job_that_was_made_again_hides_no_steps_that_others_lost(promtool: Path, tmp_path: Path) -> None:
    series = {of("steps_lost", "again"): "50x90 0x29", of("steps_lost", "digits"): "5x90 7x29"}
    told(promtool, tmp_path, "Steps lost", series, 2)


def test_each_query_of_jobs_reads_the_selected_ones_alone() -> None:
    for panel in PAGES["jobs"]["panels"]:
        for target in panel.get("targets", ()):
            assert target["expr"].count("perdure_job_") == target["expr"].count('name=~"$name"'), panel["title"]


def test_every_series_of_a_job_is_in_a_panel() -> None:
    """But for what a variable asks for, what an alert says, and what kubectl shows of one job."""
    elsewhere = {"info", "unreadable", "phase", "run", "runs_unreported"}
    elsewhere |= {f"{moment}_timestamp_seconds" for moment in ("created", "start", "completion")}
    asked = " ".join(target["expr"] for panel in PAGES["jobs"]["panels"] for target in panel.get("targets", ()))
    shown = set(re.findall(r"perdure_job_([a-z_]+)\{", asked))
    ends = {SeriesKind.GAUGE: "", SeriesKind.COUNTER: "_total", SeriesKind.HISTOGRAM: "_bucket"}
    there = {one.name.removeprefix("perdure_job_") + ends[one.kind] for one in SERIES}
    assert shown == there - elsewhere


def test_the_chart_gives_grafanas_sidecar_both(tools: dict[str, Path]) -> None:
    argv = [str(tools["helm"] / "helm"), "template", "perdure", str(REPOSITORY / "helm" / "perdure")]
    argv += ["--set=metrics.enabled=true", "--set=metrics.dashboards.enabled=true"]
    argv += ["--set=metrics.dashboards.annotations.grafana_folder=Training"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    (found,) = (
        one for one in yaml.safe_load_all(done.stdout) if one and one["metadata"]["name"].endswith("-dashboards")
    )
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Training"}
    shown = {
        name.removeprefix("perdure-").removesuffix(".json"): json.loads(text) for name, text in found["data"].items()
    }
    assert shown == PAGES
