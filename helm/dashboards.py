"""The chart's Grafana dashboards, made with Grafana's own SDK: `python -m helm.dashboards --write` or `--check`.

One shows jobs, the other the operator. A job's series move to another replica with the lead, so each query takes the
maximum over replicas. docs/metrics.md says what each series means.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, ValueMap, ValueMappingResult, VariableRefresh
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER: Final = Path(__file__).parent / "perdure" / "dashboards"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
JOBS: Final = 'namespace=~"$namespace", name=~"$name"'
REPLICAS: Final = 'instance=~"$instance"'
JOB: Final = "{{namespace}}/{{name}}"
RUNNING: Final = 'type="Running"'
PROGRESSING: Final = 'type="Progressing"'
FAILED: Final = 'type="Failed"'
REPORTED: Final = 'type=~"Progressing|StorageReachable|CheckpointFresh"'
WAITS: Final = 'reason!~"Suspended|Completed|Failed"'
DISRUPTION: Final = "disruption_start_timestamp_seconds"
LEAVES: Final = 'disruption=~"NodeLeaving|NodeFault|MemberDeleted"'
"""Disruptions for which a member has to leave its node, as in the alert PerdureDrainBlocked."""
CONDITIONS: Final = {"-1": ("unknown", "text"), "0": ("False", "red"), "1": ("True", "green")}
ROLES: Final = {"0": ("no", "text"), "1": ("yes", "green")}
KINDS: Final[Mapping[str, Any]] = {
    "number": stat.Panel,
    "lines": timeseries.Panel,
    "states": statetimeline.Panel,
    "table": table.Panel,
}


def job(series: str, *labels: str, where: str = "", offset: str = "") -> str:
    """One value of each selected job, whichever replica shows it."""
    by = ", ".join(("namespace", "name", *labels))
    of = ", ".join(filter(None, (JOBS, where)))
    return f"max by ({by}) (perdure_job_{series}{{{of}}}{offset and f' offset {offset}'})"


def grown(series: str, *labels: str, over: str = "$__rate_interval") -> str:
    """By how much a counter of all selected jobs has grown. A new leader's own series begins where the last one was."""
    each, by = f"increase(perdure_job_{series}{{{JOBS}}}[{over}])", ", ".join(labels)
    return f"sum by ({by}) (max by (namespace, name, {by}) ({each}))"


def pauses_of(percent: int) -> str:
    """So many of the last hour's pauses of all selected jobs were no longer."""
    return f"histogram_quantile({percent / 100}, {grown('pause_seconds_bucket', 'kind', 'le', over='1h')})"


def share_of_goodput() -> str:
    """The part of each job's seconds that is goodput, of those that came to be known lately."""
    good = f"max by (namespace, name) (increase(perdure_job_goodput_seconds_total{{{JOBS}}}[1h]))"
    each = f"max by (namespace, name, cause) (increase(perdure_job_badput_seconds_total{{{JOBS}}}[1h]))"
    return f"{good} / ({good} + sum by (namespace, name) ({each}))"


def operator(series: str, *, rate: bool = False) -> str:
    """A series of the selected replicas."""
    found = f"perdure_operator_{series}{{{REPLICAS}}}"
    return f"rate({found}[$__rate_interval])" if rate else found


@dataclass(frozen=True)
class Panel:
    """A picture: queries in PromQL by their legends, and how their values are shown."""

    title: str
    queries: Mapping[str, str]
    kind: str = "lines"
    unit: str = "short"
    width: int = 12
    says: str = ""
    words: Mapping[str, tuple[str, str]] | None = None
    """Text and colour of each value."""


@dataclass(frozen=True)
class Page:
    """A dashboard: its variables, each with the query of its values, and its rows."""

    name: str
    title: str
    variables: Mapping[str, str]
    rows: Mapping[str, Sequence[Panel]]


def number(title: str, query: str, *, unit: str = "short", says: str = "") -> Panel:
    """One number of all selected jobs; zero where there is none."""
    return Panel(title, {"": f"{query} or vector(0)"}, "number", unit, 4, says)


PAGES: Final = (
    Page(
        "jobs",
        "Perdure: jobs",
        {
            "namespace": "label_values(perdure_job_info, namespace)",
            "name": 'label_values(perdure_job_info{namespace=~"$namespace"}, name)',
        },
        {
            "Now": (
                number(
                    "Jobs that train",
                    f"count({job('condition', where=RUNNING)} == 1 unless {job('condition', where=PROGRESSING)} == 0)",
                    says="those that report, and make no step, do not count",
                ),
                number("Jobs that wait", f"count({job('waiting', 'reason', where=WAITS)} == 1)"),
                number("Jobs that failed", f"count({job('condition', where=FAILED)} == 1)"),
                number("Members", f"sum({job('replicas')})"),
                number(
                    "Longest drain",
                    f"max(time() - {job(DISRUPTION, where=LEAVES)})",
                    unit="s",
                    says="since the first signal by which a member has to leave its node",
                ),
                number(
                    "Steps lost",
                    f"sum(clamp_min({job('steps_lost')} - {job('steps_lost', offset='$__range')}, 0))",
                    says="in the time that is shown, of jobs that were there at its begin",
                ),
                Panel(
                    "What jobs wait for",
                    {"": f"{job('waiting', 'reason', where=WAITS)} == 1"},
                    "table",
                    width=24,
                    says="the reason of the condition Running; kubectl describe ptj says more",
                ),
            ),
            "Disruptions": (
                Panel(
                    "A member has to leave, since",
                    {f"{JOB} {{{{disruption}}}}": f"time() - {job(DISRUPTION, 'disruption', where=LEAVES)}"},
                    unit="s",
                ),
                Panel(
                    "Members of the run before still leave, since",
                    {JOB: f"time() - {job('handover_start_timestamp_seconds')}"},
                    unit="s",
                ),
                Panel("Runs that took over", {"{{how}}": grown("takeovers_total", "how")}),
                Panel(
                    "Why, and how the next run took over",
                    {"{{disruption}}: {{how}}": grown("disruptions_total", "disruption", "how")},
                ),
                Panel(
                    "Pauses in an hour",
                    {f"{{{{kind}}}} {share} %": pauses_of(share) for share in (50, 99)},
                    unit="s",
                    says="of all jobs; restart: before runs that began with new processes, as far as is known",
                ),
                Panel(
                    "Pause of the newest take-over",
                    {JOB: job("takeover_pause_seconds")},
                    unit="s",
                    says="as members reported it when they ended",
                ),
                Panel("Members save and leave in", {JOB: job("exit_seconds")}, unit="s"),
                Panel("Members' nodes that are not Ready", {JOB: job("unready_nodes")}),
            ),
            "Members": (
                Panel("Members", {f"{JOB} alive": job("replicas"), f"{JOB} wanted": job("replicas_wanted")}),
                Panel("Standbys and spares", {JOB: job("standbys")}),
                Panel(
                    "Members that sharing gives",
                    {JOB: job("scaling_replicas")},
                    says="of jobs that share a pool's devices by goodput; a change takes until its members have room",
                ),
                Panel(
                    "Speedup that is expected of them",
                    {JOB: job("scaling_speedup")},
                    says="beside one process, by measured step times; without them a job's line ends",
                ),
                Panel("Stage", {f"{JOB} {{{{stage}}}}": f"{job('stage', 'stage')} == 1"}, "states", width=24),
            ),
            "Progress": (
                Panel(
                    "Conditions",
                    {f"{JOB} {{{{type}}}}": job("condition", "type", where=REPORTED)},
                    "states",
                    words=CONDITIONS,
                    says="unknown where members do not report",
                ),
                Panel(
                    "Step",
                    {JOB: job("step")},
                    says="as rank 0 reports it; without reports, that of the commit that members named when they ended",
                ),
                Panel("Samples per second", {JOB: job("samples_per_second")}),
                Panel(
                    "Age of the newest commit",
                    {JOB: f"time() - {job('last_commit_timestamp_seconds')}"},
                    unit="s",
                    says="since rank 0 learned of it",
                ),
                Panel(
                    "Training that is done",
                    {JOB: job("progress_ratio")},
                    unit="percentunit",
                    says="where its end is known",
                ),
                Panel("Time to the end", {JOB: job("remaining_seconds")}, unit="s", says="as rank 0 estimates it"),
            ),
            "Batch": (
                Panel("Samples in a step", {JOB: job("batch_samples")}, says="where the session chooses them"),
                Panel(
                    "What a sample wins",
                    {JOB: job("statistical_efficiency_ratio")},
                    unit="percentunit",
                    says="beside one in a step of the script's own batch, by the gradients' noise",
                ),
                Panel(
                    "Samples per second, by what they win",
                    {JOB: job("goodput_samples_per_second")},
                    width=24,
                    says="the rate times what a sample wins: the batch is chosen for the most of it",
                ),
            ),
            "Time": (
                Panel(
                    "Goodput",
                    {f"{JOB} in an hour": share_of_goodput(), f"{JOB} in all": job("goodput_ratio")},
                    unit="percentunit",
                    says="of the time that came to be known, the part in steps that need not be made again",
                ),
                Panel(
                    "Where the rest went",
                    {"{{cause}}": grown("badput_seconds_total", "cause")},
                    unit="s",
                    says="seconds of all jobs; those of runs as members gave account of them",
                ),
                Panel("Not decided yet", {JOB: job("undecided_seconds")}, unit="s", says="steps that are in no commit"),
                Panel("Steps since the newest commit", {JOB: job("steps_at_risk")}, says="where members report"),
                Panel(
                    "Saves",
                    {
                        f"{JOB} takes": job("save_duration_seconds"),
                        f"{JOB} stops training": job("save_stall_seconds"),
                        f"{JOB} would take now": job("required_grace_seconds"),
                    },
                    unit="s",
                    says="the newest one, where members report; now: the time that members need if they have to leave",
                ),
                Panel(
                    "Restore of the newest run",
                    {JOB: job("restore_duration_seconds")},
                    unit="s",
                    says="of runs that began with new processes",
                ),
            ),
            "Losses": (
                Panel("Steps lost", {JOB: job("steps_lost"), f"{JOB} in doubt": job("steps_in_doubt")}),
                Panel(
                    "Steps lost, by why runs ended",
                    {f"{JOB} {{{{disruption}}}}": job("disruption_steps_lost", "disruption")},
                ),
                Panel("Runs that failed", {"{{cause}}": grown("failures_total", "cause")}),
                Panel(
                    "Failure budget that is used",
                    {f"{JOB} {{{{budget}}}}": job("failure_budget_used_ratio", "budget")},
                    unit="percentunit",
                    says="at 100 % the operator gives the job up",
                ),
                Panel("Newcomers that were replaced in a row", {JOB: job("replacements")}),
            ),
        },
    ),
    Page(
        "operator",
        "Perdure: operator",
        {"instance": "label_values(perdure_operator_info, instance)"},
        {
            "Lead": (
                Panel(
                    "Leads, and has read every object",
                    {"{{instance}} leads": operator("leading"), "{{instance}} has read": operator("synced")},
                    "states",
                    words=ROLES,
                ),
                Panel("Age of the Lease's newest renewal", {"{{instance}}": operator("lease_age_seconds")}, unit="s"),
                Panel("Versions", {"": f"count by (version) ({operator('info')})"}, "table", width=24),
            ),
            "Rounds": (
                Panel(
                    "Jobs",
                    {"due": f"sum({operator('queue_due')})", "with a worker": f"sum({operator('rounds_running')})"},
                ),
                Panel("Longest wait for a worker", {"": f"max({operator('queue_oldest_seconds')})"}, unit="s"),
                Panel(
                    "Rounds",
                    {"{{outcome}}": f"sum by (outcome) ({operator('rounds_total', rate=True)})"},
                    unit="ops",
                ),
                Panel(
                    "Duration of a round",
                    {
                        f"{share} %": f"histogram_quantile({share / 100}, sum by (le) "
                        f"({operator('round_duration_seconds_bucket', rate=True)}))"
                        for share in (50, 99)
                    },
                    unit="s",
                ),
            ),
            "API server": (
                Panel(
                    "Requests",
                    {
                        "{{verb}} {{code}}": f"sum by (verb, code) ({operator('api_requests_total', rate=True)})",
                    },
                    unit="reqps",
                ),
                Panel("Writes", {"{{kind}}": f"sum by (kind) ({operator('writes_total', rate=True)})"}, unit="ops"),
                Panel(
                    "The watch has not shown a write for",
                    {"{{instance}}": operator("watch_lag_seconds")},
                    unit="s",
                ),
            ),
        },
    ),
)


def text(page: Page) -> str:
    """The dashboard as Grafana reads it."""
    board = Dashboard(page.title).uid(f"perdure-{page.name}").tags(["perdure"]).refresh("30s").time("now-6h", "now")
    board.with_variable(DatasourceVariable("datasource").label("data source").type("prometheus"))
    for name, query in page.variables.items():
        variable = QueryVariable(name).datasource(SOURCE).query(query).multi(True).include_all(True).all_value(".*")
        board.with_variable(variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED))
    for title, panels in page.rows.items():
        board.with_row(Row(title))
        for panel in panels:
            board.with_panel(_built(panel))
    built = board.build()
    for number_, panel in enumerate(built.panels or [], 1):
        panel.id_val = number_
    return str(JSONEncoder(sort_keys=True, indent=1).encode(built)) + "\n"


def _built(panel: Panel) -> Any:
    at_once = panel.kind in ("number", "table")
    builder = KINDS[panel.kind]().title(panel.title).datasource(SOURCE).span(panel.width)
    builder.height(4 if panel.kind == "number" else 8)
    if panel.kind != "table":
        builder.unit(panel.unit)
    if panel.kind == "lines":
        builder.min(0)
    if panel.says:
        builder.description(panel.says)
    if panel.words is not None:
        results = {value: ValueMappingResult(text=word, color=color) for value, (word, color) in panel.words.items()}
        builder.mappings([ValueMap(results)])
    for letter, (legend, query) in zip("ABC", panel.queries.items(), strict=False):
        one = Dataquery().ref_id(letter).expr(query).legend_format(legend)
        one = one.instant() if at_once else one.range()
        builder.with_target(one.format(PromQueryFormat.TABLE) if panel.kind == "table" else one)
    return builder


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--write", action="store_true", help="write the files of the chart")
    ways.add_argument("--check", action="store_true", help="fail if a file is not what this makes")
    options = parser.parse_args()
    stale = [page for page in PAGES if not _file(page).exists() or _file(page).read_text() != text(page)]
    if options.write:
        FOLDER.mkdir(exist_ok=True)
        for page in stale:
            _file(page).write_text(text(page))
        return 0
    for page in stale:
        print(f"{_file(page).name} is not what helm/dashboards.py makes: run `make generate`", file=sys.stderr)
    return 1 if stale else 0


def _file(page: Page) -> Path:
    return FOLDER / f"{page.name}.json"


if __name__ == "__main__":
    sys.exit(main())
