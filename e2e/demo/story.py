"""What the demo does, step by step, saying each: train, drain, complete; then the same training undisturbed.

It tells it of examples/digits, or of examples/tinygpt with a model that the members hold in parts.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.demo.picture import drawn
from e2e.demo.report import Result, Trained, judge, told
from e2e.harness import observed
from e2e.harness.drain import Drained
from e2e.harness.job import Job, Manifest, merged, with_container
from e2e.harness.lab import DIGITS, TINYGPT, TRACE, Lab, example
from e2e.harness.watching import Late, Watch
from e2e.prepare import Environments, Progress

CLUSTER = "demo"
PICTURE = Path(__file__).resolve().parents[2] / "build" / "demo" / "timeline.svg"
START_SECONDS = 90.0
FINISH_SECONDS = 180.0
UNDISTURBED = {"spec": {"checkpoint": {"uri": "s3://perdure/undisturbed"}}}


@dataclass(frozen=True)
class Example:
    """A training of the examples' folder, and what it prints at its end."""

    folder: Path
    epochs: int
    """So many that a fast machine still trains when the drain is over."""
    score: str
    """A name for the result."""
    printed: str
    """What comes before it in a member's output."""
    samples: Callable[[Path], int]
    """How many an epoch has, whatever was trained on, with this Python."""
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The job's."""
        return self.folder.name

    def manifest(self) -> Manifest:
        """Its job.yaml, with these options."""
        command = ["python", "train.py", "--epochs", str(self.epochs), *self.options]
        return with_container(example(self.folder), {TRACE: "1"}, command=command)


COUNT = "import runpy, sys; s = runpy.run_path(sys.argv[1]); print(len(s['Text'](s['TRAINING_FILES'])))"


def pieces_of_text(python: Path) -> int:
    """The samples of examples/tinygpt, which are pieces of that Python's own library."""
    command = [str(python), "-c", COUNT, str(TINYGPT / "train.py")]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


WHOLE = Example(DIGITS, 60, "accuracy", "accuracy", lambda _: 1536)
SHARDED = Example(TINYGPT, 2, "loss", "evaluation loss", pieces_of_text, ("--fsdp",))


@dataclass(frozen=True)
class Demo:
    """One telling of the story, on a cluster that is up."""

    lab: Lab
    progress: Progress
    example: Example = WHOLE

    def tell(self) -> Result:
        """Everything; prints the report."""
        start = time.time()
        manifest = self.example.manifest()
        if self.example.folder == TINYGPT:  # every cluster has the image of the other
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            self.lab.image(container["image"], [TINYGPT / "train.py"])
        moved, drained = self._drained_training(manifest)
        undisturbed = self._undisturbed_training(merged(manifest, UNDISTURBED))
        python = Environments(Path(self.lab.cluster.facts.environments)).trainer / "bin" / "python"
        samples = self.example.samples(python)
        result = judge(moved, undisturbed, drained, samples=samples, epochs=self.example.epochs)
        print("\n" + told(result, moved, undisturbed, start, score=self.example.score), flush=True)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(drawn(moved.history, moved.steps, result.promises.gap, drained), encoding="utf-8")
        self.progress.say(f"drawn: {PICTURE}")
        return result

    def _drained_training(self, manifest: Manifest) -> tuple[Trained, Drained]:
        job = self.lab.job(manifest, "demo")
        with job.watch() as watch:
            self.progress.say(
                f"kubectl apply -f examples/{self.example.name}/job.yaml (with this cluster's S3 endpoint, and "
                f"{', '.join([f'{self.example.epochs} epochs', *self.example.options])})"
            )
            job.apply()
            watch.wait("both members have their ranks", observed.training_run, seconds=START_SECONDS)
            self.progress.say("both members have their ranks; waiting for the first commit")
            commit = job.root.wait_for_commit(seconds=START_SECONDS)
            self.progress.say(f"it trains: step {commit.body['step']} is committed")
            watch.wait("the job runs", observed.in_phase("Running"), seconds=START_SECONDS)
            drained = self._drain(str(observed.member_of_rank(watch.history, 1)["spec"]["nodeName"]))
            self._shows(job)
            self._completes(watch)
            return self._trained(job, watch), drained

    def _drain(self, node: str) -> Drained:
        self.progress.say(f"kubectl drain {node} --ignore-daemonsets")
        with self.lab.drain(node) as drain:
            drained = drain.finish()
        self.progress.say(f"kubectl drain came back with status {drained.status} after {drained.seconds:.1f} s")
        return drained

    def _shows(self, job: Job) -> None:
        """What a user sees now."""
        self.progress.say(f"kubectl get trainingjob {job.name}")
        print(job.kubectl("get", "trainingjob", job.name, "--namespace", job.namespace).rstrip(), flush=True)

    def _undisturbed_training(self, manifest: Manifest) -> Trained:
        job = self.lab.job(manifest, "undisturbed")
        with job.watch() as watch:
            self.progress.say("the same training again, undisturbed, to compare with")
            job.apply()
            self._completes(watch)
            return self._trained(job, watch)

    def _completes(self, watch: Watch) -> None:
        found = watch.wait("the job ends", observed.in_phase("Completed", "Failed"), seconds=FINISH_SECONDS)
        if found["phase"] != "Completed":
            raise Late(f"the job has failed: {found.get('conditions')}")
        self.progress.say(f"the training is completed at step {found['step']}")
        watch.wait("each member has reported how it ended", observed.all_ended, seconds=FINISH_SECONDS)

    def _trained(self, job: Job, watch: Watch) -> Trained:
        """Its evidence; the score is the script's output."""
        names = [pod["metadata"]["name"] for pod in observed.pods(watch.history)]
        outputs = [job.kubectl("logs", name, "--namespace", job.namespace) for name in names]
        printed = re.findall(rf"{self.example.printed} ([\w.]+)", "\n".join(outputs))
        score = printed[-1] if printed else "unknown"
        return Trained(watch.history, job.root.entries(), job.root.trace().steps, score, job.root.weight_hash())
