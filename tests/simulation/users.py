"""What people do to a job: everything that kubectl allows and the CRD lets through."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.simulation.interface import Behaviour
from tests.simulation.objects import BUDGETS, JOBS, PODS, Json, Refused, clone, key_of, labels_of, owner_of, terminal
from tests.simulation.world import World

USER = "user"
AGAIN_SECONDS = 10.0


class User:
    """The owner of one job, by name: it may be deleted and made again."""

    def __init__(self, world: World, namespace: str, name: str, body: Json, behaviour: Behaviour) -> None:
        self.world = world
        self.key = (namespace, name)
        self.body = body
        self.root = str(body["spec"]["checkpoint"]["uri"])
        self.goal = behaviour.goal
        self.deadline = False
        """Whether activeDeadlineSeconds is being played with."""
        self.fought_over = False
        """Whether two tools write its spec in turn."""
        self.rng: random.Random = world.rng(f"user/{namespace}/{name}")
        world.behaviours[f"{namespace}/{name}"] = behaviour

    def apply(self) -> None:
        if self.job is None:
            self.world.tell(USER, "apply", job=self.key[1])
            try:
                self.world.server.create(JOBS, self.key[0], clone(self.body), by=USER)
            except Refused:  # its namespace is being deleted: people try again
                self.world.after(AGAIN_SECONDS, self.apply)

    @property
    def job(self) -> Json | None:
        return self.world.server.find(JOBS, *self.key)

    def pods(self) -> list[Json]:
        """Of this very job."""
        job = self.job
        uid = job["metadata"]["uid"] if job else None
        return [one for one in self.world.server.all(PODS, self.key[0]) if owner_of(one) == uid]

    def edit(self, **fields: Any) -> None:
        """Change spec."""

        def change(raw: Json) -> None:
            for name, value in clone(fields).items():
                if value is None:
                    raw["spec"].pop(name, None)
                else:
                    raw["spec"][name] = value

        self._change(change, f"edit {fields}")

    def template(self, how: Callable[[Json], object], words: str) -> None:
        """Change spec.template."""
        self._change(lambda raw: how(raw["spec"]["template"]), words)

    def _change(self, how: Callable[[Json], object], words: str) -> None:
        if self.job is not None:
            self.world.tell(USER, words, job=self.key[1])
            self.world.server.change(JOBS, *self.key, how, by=USER)

    def delete(self, *, finalizer: str = "") -> None:
        if self.job is not None:
            self.world.tell(USER, "delete", job=self.key[1], finalizer=finalizer)
            self.world.server.delete(JOBS, *self.key, by=USER, finalizer=finalizer)

    def delete_pod(self, grace: int | None = None) -> None:
        alive = [one for one in self.pods() if not terminal(one)]
        if alive:
            self.delete_that(self.rng.choice(alive), grace)

    def delete_that(self, pod: Json, grace: int | None = None) -> None:
        self.world.fire("delete-pod")
        self.world.tell(USER, "delete pod", pod=pod["metadata"]["name"], grace=grace)
        try:
            self.world.server.delete(PODS, *key_of(pod), by=USER, grace=grace)
        except Refused:
            return

    def budget(self) -> Json | None:
        """The job's, by its owner."""
        job = self.job
        return next(
            (
                one
                for one in self.world.server.all(BUDGETS, self.key[0])
                if job is not None and owner_of(one) == job["metadata"]["uid"]
            ),
            None,
        )

    def edit_budget(self, spec: Json) -> None:
        budget = self.budget()
        if budget is None:
            return
        self.world.tell(USER, "edit budget", spec=spec)

        def change(raw: Json) -> None:
            raw["spec"].pop("minAvailable", None)
            raw["spec"].pop("maxUnavailable", None)
            raw["spec"].update(spec)

        self.world.server.change(BUDGETS, *key_of(budget), change, by=USER)

    def note(self, pod: Json, annotation: str, value: str) -> None:
        """Write an annotation that has no meaning here."""

        def change(raw: Json) -> None:
            raw["metadata"].setdefault("annotations", {})[annotation] = value

        there = self.world.server.find(PODS, *key_of(pod))
        if there is not None:
            self.world.server.change(PODS, *key_of(pod), change, by="scanner")

    def relabel(self, label: str, value: str | None) -> tuple[Json, str | None] | None:
        """Change a label of one pod; returns its old value."""
        pods = [one for one in self.pods() if not terminal(one)]
        if not pods:
            return None
        pod = self.rng.choice(pods)
        old = labels_of(pod).get(label)
        self.put_label(pod, label, value)
        return pod, old

    def put_label(self, pod: Json, label: str, value: str | None) -> None:
        def change(raw: Json) -> None:
            labels = raw["metadata"].setdefault("labels", {})
            if value is None:
                labels.pop(label, None)
            else:
                labels[label] = value

        there = self.world.server.find(PODS, *key_of(pod))
        if there is not None and there["metadata"]["uid"] == pod["metadata"]["uid"]:
            self.world.tell(USER, "label", pod=pod["metadata"]["name"], label=label, value=value)
            self.world.server.change(PODS, *key_of(pod), change, by=USER)
