"""Where each module's tests are: in the test file of its name, or in one that this table names.

`runtime/perdure/live/keys.py` has its tests in `tests/unit/runtime/live/test_keys.py`, a module of the operator below
`tests/unit/operator/`. What is tested under a promise that several modules keep together stands in TESTED_IN. `make
check` runs this module, which prints what is wrong.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "perdure": ("runtime/perdure", "tests/unit/runtime"),
    "perdure_operator": ("operator/perdure_operator", "tests/unit/operator"),
}
"""Where a package is, and where its tests are."""
TESTED_IN: Final[Mapping[str, Sequence[str]]] = {
    "tests/handover/test_images.py": ["perdure/agent/rescuer"],
    "tests/handover/test_mirrored.py": ["perdure/loop/mirroring"],
    "tests/api/test_kubectl_perdure.py": [
        "perdure_operator/cli/kubectl/following",
        "perdure_operator/cli/kubectl/reading",
        "perdure_operator/cli/kubectl/start",
    ],
    "tests/unit/operator/cli/convert/test_sources.py": [
        "perdure_operator/cli/convert/fields",
        "perdure_operator/cli/convert/members",
    ],
    "tests/unit/operator/cli/kubectl/test_status_page.py": ["perdure_operator/cli/kubectl/job"],
    "tests/unit/operator/cluster/read/test_cache.py": [
        "perdure_operator/cluster/read/deleted_objects",
        "perdure_operator/cluster/read/records",
    ],
    "tests/unit/operator/cluster/read/test_observe.py": ["perdure_operator/cluster/read/live"],
    "tests/unit/operator/cluster/read/test_parse.py": [
        "perdure_operator/api/names",
        "perdure_operator/cluster/read/containers",
        "perdure_operator/state/snapshot",
    ],
    "tests/unit/operator/cluster/test_memory_cluster.py": [
        "perdure_operator/cluster/memory",
        "perdure_operator/cluster/protocol",
    ],
    "tests/unit/operator/cluster/write/test_act.py": [
        "perdure_operator/cluster/write/admitted",
        "perdure_operator/cluster/write/order",
        "perdure_operator/cluster/write/writes",
        "perdure_operator/state/decision",
    ],
    "tests/unit/operator/decide/test_blame.py": [
        "perdure_operator/decide/outcomes",
    ],
    "tests/unit/operator/decide/test_exit_problems.py": ["perdure_operator/decide/placement"],
    "tests/unit/operator/decide/test_growing.py": ["perdure_operator/decide/draft", "perdure_operator/decide/facts"],
    "tests/unit/operator/decide/test_life.py": [
        "perdure_operator/decide/budget",
        "perdure_operator/decide/gates",
        "perdure_operator/decide/members",
    ],
    "tests/unit/operator/decide/test_preparing.py": [
        "perdure_operator/decide/intents",
    ],
    "tests/unit/operator/decide/test_reactions.py": ["perdure_operator/decide/disruptions"],
    "tests/unit/operator/decide/test_root_problem.py": ["perdure_operator/api/reasons"],
    "tests/unit/operator/decide/test_steps_lost.py": ["perdure_operator/decide/ending"],
    "tests/unit/operator/serving/metrics/test_server.py": ["perdure_operator/serving/connections"],
    "tests/unit/operator/serving/metrics/test_access.py": ["perdure_operator/serving/reviews"],
    "tests/unit/operator/loop/test_watch.py": ["perdure_operator/loop/affected_jobs"],
    "tests/api/test_operator_process.py": ["perdure_operator/loop/operator", "perdure_operator/cli/start"],
    "tests/unit/operator/schema/test_crd.py": [
        "perdure_operator/api/cel",
        "perdure_operator/api/model",
        "perdure_operator/api/spec",
    ],
    "tests/unit/operator/schema/test_generated.py": [
        "perdure_operator/schema/reference_page",
        "perdure_operator/schema/signals_page",
    ],
    "tests/unit/operator/schema/test_pod.py": ["perdure_operator/schema/template"],
    "tests/unit/operator/state/test_signal_table.py": ["perdure_operator/api/signal_rows"],
    "tests/unit/operator/test_announcements.py": ["perdure_operator/api/default_signals"],
    "tests/unit/operator/cli/test_main.py": ["perdure_operator/loop/logs"],
    "tests/unit/operator/api/test_configured.py": ["perdure_operator/cli/explain_signals"],
    "tests/unit/operator/test_vanished_pool.py": ["perdure_operator/cluster/batching"],
    "tests/unit/compat/test_status.py": ["perdure_operator/api/status"],
    "tests/unit/runtime/adapters/test_hf.py": [
        "perdure/adapters/hf/batches",
        "perdure/adapters/hf/cues",
        "perdure/adapters/hf/driving",
        "perdure/adapters/hf/limits",
        "perdure/adapters/hf/losses",
        "perdure/adapters/hf/trainer",
        "perdure/adapters/hf/trainer_progress",
    ],
    "tests/unit/runtime/adapters/test_tracking.py": [
        "perdure/adapters/tracking/mlflow",
        "perdure/adapters/tracking/sink",
        "perdure/adapters/tracking/tensorboard",
        "perdure/adapters/tracking/wandb",
    ],
    "tests/unit/runtime/adapters/test_live.py": [
        "perdure/adapters/hf/wrapping",
        "perdure/adapters/lightning/early",
        "perdure/loop/framework",
    ],
    "tests/unit/runtime/adapters/test_lightning.py": [
        "perdure/adapters/lightning/batches",
        "perdure/adapters/lightning/checks",
        "perdure/adapters/lightning/driver",
        "perdure/adapters/lightning/inner",
        "perdure/adapters/lightning/metrics",
        "perdure/adapters/lightning/ranks",
        "perdure/adapters/lightning/state",
        "perdure/adapters/lightning/strategy",
    ],
    "tests/unit/runtime/agent/test_agent.py": ["perdure/agent/paths", "perdure/cli/start"],
    "tests/unit/runtime/agent/test_machine.py": ["perdure/agent/state"],
    "tests/unit/runtime/agent/test_stop.py": ["perdure/host/process_age"],
    "tests/unit/runtime/agent/test_zygote.py": [
        "perdure/agent/fork",
        "perdure/agent/launch",
        "perdure/agent/preload",
        "perdure/agent/program",
        "perdure/host/descriptors",
        "perdure/host/parent",
    ],
    "tests/unit/runtime/checkpoint/background/test_machine.py": [
        "perdure/checkpoint/background/agreeing",
        "perdure/checkpoint/background/committing",
        "perdure/checkpoint/background/events",
        "perdure/checkpoint/background/leaving",
        "perdure/checkpoint/background/state",
        "perdure/checkpoint/background/this_rank",
        "perdure/checkpoint/background/vector",
    ],
    "tests/unit/runtime/checkpoint/background/test_uploader.py": [
        "perdure/checkpoint/background/part",
        "perdure/checkpoint/background/sealed",
        "perdure/checkpoint/background/uploader_messages",
    ],
    "tests/unit/runtime/checkpoint/test_damage.py": ["perdure/log/audit"],
    "tests/unit/runtime/checkpoint/test_cells.py": ["perdure/checkpoint/boxes", "perdure/checkpoint/manifest"],
    "tests/unit/runtime/checkpoint/test_checkpointer.py": ["perdure/log/position"],
    "tests/unit/runtime/checkpoint/test_save_load.py": [
        "perdure/checkpoint/download",
        "perdure/checkpoint/load",
        "perdure/checkpoint/save",
        "perdure/checkpoint/stage",
        "perdure/checkpoint/state",
        "perdure/checkpoint/upload",
    ],
    "tests/unit/runtime/checkpoint/test_reading.py": ["perdure/log/kept"],
    "tests/unit/runtime/group/test_agreement.py": ["perdure/group/pace"],
    "tests/unit/runtime/group/test_collectives.py": ["perdure/errors", "perdure/group/peers"],
    "tests/unit/runtime/live/protocol/test_machine.py": [
        "perdure/live/protocol/deciding",
        "perdure/live/protocol/events",
        "perdure/live/protocol/newcomer",
        "perdure/live/protocol/old",
        "perdure/live/protocol/returning",
        "perdure/live/protocol/state",
        "perdure/live/protocol/waiting",
    ],
    "tests/unit/runtime/live/test_driving.py": ["perdure/host/threads", "perdure/live/handover"],
    "tests/unit/runtime/live/test_effects.py": [
        "perdure/live/bridge",
        "perdure/live/keys",
        "perdure/live/membership",
        "perdure/live/word",
        "perdure/log/members",
    ],
    "tests/unit/runtime/live/test_failing.py": ["perdure/live/joining", "perdure/live/newcomer"],
    "tests/unit/runtime/live/test_live.py": ["perdure/group/old_groups", "perdure/live/collector"],
    "tests/unit/runtime/log/test_takeover.py": ["perdure/log/verdict"],
    "tests/unit/runtime/log/test_writer.py": ["perdure/log/reader"],
    "tests/unit/runtime/loop/data/test_fingerprint.py": ["perdure/loop/position/datasets"],
    "tests/unit/runtime/loop/data/test_loader.py": [
        "perdure/loop/data/changing",
        "perdure/loop/data/holders",
        "perdure/loop/data/source",
    ],
    "tests/unit/runtime/loop/data/test_sampling.py": ["perdure/loop/data/permutation"],
    "tests/unit/runtime/loop/position/test_accumulating.py": ["perdure/loop/position/totals"],
    "tests/unit/runtime/loop/telemetry/test_events.py": ["perdure/loop/telemetry/sinks"],
    "tests/unit/runtime/loop/test_hanging.py": ["perdure/wire/phase_limits"],
    "tests/unit/runtime/loop/test_reporting.py": ["perdure/loop/failures"],
    "tests/unit/runtime/loop/test_survivor_snapshots.py": ["perdure/loop/safe_point"],
    "tests/unit/runtime/session/test_background_alone.py": [
        "perdure/checkpoint/background/copies",
        "perdure/loop/background_saves",
        "perdure/loop/save_effects",
    ],
    "tests/unit/runtime/session/test_boundary.py": ["perdure/loop/leaving", "perdure/loop/position/progress"],
    "tests/unit/runtime/session/test_description.py": [
        "perdure/checkpoint/outlook",
        "perdure/cli/describe",
        "perdure/session/describing",
        "perdure/session/preview",
        "perdure/store/overlay",
    ],
    "tests/unit/runtime/session/test_exchanging.py": ["perdure/session/functions"],
    "tests/unit/runtime/session/test_found_groups.py": ["perdure/group/found"],
    "tests/unit/runtime/session/test_late.py": ["perdure/state/pending_state", "perdure/wire/names"],
    "tests/unit/runtime/session/test_loading.py": ["perdure/checkpoint/stored_commit"],
    "tests/unit/runtime/session/test_processes.py": ["perdure/agent/exit_cause"],
    "tests/unit/runtime/session/test_ranks.py": [
        "perdure/loop/evaluated",
        "perdure/loop/current_call",
        "perdure/session/closures",
        "perdure/state/parameter_layouts",
        "perdure/state/wrapping",
    ],
    "tests/unit/runtime/session/test_restoring.py": [
        "perdure/checkpoint/tree",
        "perdure/session/resuming",
        "perdure/state/modules",
        "perdure/state/optimizers",
        "perdure/state/parts",
        "perdure/state/renaming",
    ],
    "tests/unit/runtime/session/test_scripts.py": ["perdure/state/keepers", "perdure/state/living"],
    "tests/unit/runtime/session/test_session.py": [
        "perdure/loop/run",
        "perdure/session/core",
        "perdure/session/sources",
    ],
    "tests/unit/runtime/session/test_validating.py": [
        "perdure/session/forgotten",
        "perdure/session/unregistered_check",
    ],
    "tests/unit/runtime/store/test_contract.py": ["perdure/store/protocol"],
    "tests/unit/runtime/store/test_minimum_commit.py": ["perdure/log/minimum_commit"],
    "tests/unit/runtime/store/test_s3.py": [
        "perdure/log/objects",
        "perdure/store/clients",
        "perdure/store/draws",
        "perdure/store/retries",
    ],
    "tests/unit/runtime/testing/test_processes.py": ["perdure/testing/keeper"],
    "tests/unit/runtime/wire/test_assignment.py": ["perdure/wire/reading"],
    "tests/unit/runtime/wire/test_settings.py": ["perdure/wire/wanted"],
    "tests/unit/runtime/cli/test_importing.py": ["perdure/checkpoint/first_commit", "perdure/session/importing"],
}
"""Modules without a test file of their name, by the file that has their tests."""


def problems(folder: Path, table: Mapping[str, Sequence[str]] = TESTED_IN) -> Iterator[str]:
    """What is wrong in the repository in this folder, a line each."""
    listed = Counter(module for modules in table.values() for module in modules)
    own = {module: folder / test for module, test in _modules(folder)}
    for file in table:
        if not (folder / file).is_file():
            yield f"TESTED_IN names {file}, which does not exist"
    for module, times in sorted(listed.items()):
        if module not in own:
            yield f"TESTED_IN names {module}.py, which does not exist"
        elif own[module].is_file():
            yield f"TESTED_IN names {module}.py, which has {own[module].relative_to(folder)}"
        elif times > 1:
            yield f"TESTED_IN names {module}.py twice"
    for module, test in sorted(own.items()):
        if module not in listed and not test.is_file():
            remedy = "write it, or name the file with its tests in TESTED_IN"
            yield f"{module}.py has no {test.relative_to(folder)}: {remedy}"


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """Each module of a package, with the path of the test file of its name."""
    for package, (place, tests) in PACKAGES.items():
        for file in (folder / place).rglob("*.py"):
            module = file.relative_to(folder / place)
            if not file.name.startswith("__"):
                yield f"{package}/{module.with_suffix('')}", f"{tests}/{module.with_name(f'test_{file.name}')}"


def main() -> int:
    """Exit status 1 if something is wrong."""
    found = list(problems(REPOSITORY))
    print(*(f"tests/support/names_of_tests.py: {line}\n" for line in found), sep="", end="")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
