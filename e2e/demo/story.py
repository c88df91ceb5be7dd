"""What the demo does, step by step, saying each: train, drain, complete; then the same training undisturbed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.demo.picture import drawn
from e2e.demo.report import Result, Trained, judge, told
from e2e.harness import observed
from e2e.harness.drain import Drained
from e2e.harness.job import Job, Manifest, merged, with_container
from e2e.harness.lab import Lab, digits
from e2e.harness.watching import Late, Watch
from e2e.prepare import Progress

CLUSTER = "demo"
SAMPLES = 1536
EPOCHS = 60
"""So many that a fast machine still trains when the drain is over."""
PICTURE = Path(__file__).resolve().parents[2] / "build" / "demo" / "timeline.svg"
START_SECONDS = 90.0
FINISH_SECONDS = 180.0
UNDISTURBED = {"spec": {"checkpoint": {"uri": "s3://perdure/undisturbed"}}}


@dataclass(frozen=True)
class Demo:
    """One telling of the story, on a cluster that is up."""

    lab: Lab
    progress: Progress

    def tell(self) -> Result:
        """Everything; prints the report."""
        start = time.time()
        manifest = with_container(digits(), {}, command=["python", "train.py", "--epochs", str(EPOCHS)])
        moved, drained = self._drained_training(manifest)
        undisturbed = self._undisturbed_training(merged(manifest, UNDISTURBED))
        result = judge(moved, undisturbed, drained, samples=SAMPLES, epochs=EPOCHS)
        print("\n" + told(result, moved, undisturbed, start), flush=True)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(drawn(moved.history, moved.steps, result.promises.gap, drained), encoding="utf-8")
        self.progress.say(f"drawn: {PICTURE}")
        return result

    def _drained_training(self, manifest: Manifest) -> tuple[Trained, Drained]:
        job = self.lab.job(manifest, "demo")
        with job.watch() as watch:
            self.progress.say(
                f"kubectl apply -f examples/digits/job.yaml (with this cluster's S3 endpoint, and {EPOCHS} epochs)"
            )
            job.apply()
            watch.wait("both members have their ranks", observed.training_run, seconds=START_SECONDS)
            self.progress.say("both members have their ranks; waiting for the first commit")
            commit = job.root.wait_for_commit(seconds=START_SECONDS)
            self.progress.say(f"it trains: step {commit.body['step']} is committed")
            watch.wait("the job runs", observed.in_phase("Running"), seconds=START_SECONDS)
            drained = self._drain(str(observed.member_of_rank(watch.history, 1)["spec"]["nodeName"]))
            self._completes(watch)
            return trained(job, watch), drained

    def _drain(self, node: str) -> Drained:
        self.progress.say(f"kubectl drain {node} --ignore-daemonsets")
        with self.lab.drain(node) as drain:
            drained = drain.finish()
        self.progress.say(f"kubectl drain came back with status {drained.status} after {drained.seconds:.1f} s")
        return drained

    def _undisturbed_training(self, manifest: Manifest) -> Trained:
        job = self.lab.job(manifest, "undisturbed")
        with job.watch() as watch:
            self.progress.say("the same training again, undisturbed, to compare with")
            job.apply()
            self._completes(watch)
            return trained(job, watch)

    def _completes(self, watch: Watch) -> None:
        found = watch.wait("the job ends", observed.in_phase("Completed", "Failed"), seconds=FINISH_SECONDS)
        if found["phase"] != "Completed":
            raise Late(f"the job has failed: {found.get('conditions')}")
        self.progress.say(f"the training is completed at step {found['step']}")
        watch.wait("each member has reported how it ended", observed.all_ended, seconds=FINISH_SECONDS)


def trained(job: Job, watch: Watch) -> Trained:
    """Its evidence; the accuracy is the script's output."""
    pod = observed.pods(watch.history)[-1]["metadata"]["name"]
    printed = re.search(r"accuracy (\S+)", job.kubectl("logs", pod, "--namespace", job.namespace))
    accuracy = printed[1] if printed else "unknown"
    return Trained(watch.history, job.root.entries(), job.root.trace().steps, accuracy, job.root.weight_hash())
