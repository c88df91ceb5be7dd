"""Bugs in gates, in naming and promoting members, in the budget, and in the objects that are created."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_DECIDE: Final = "operator/perdure_operator/decide/"
_TABLES: Final = f"{_DECIDE}__init__.py"
_BUDGET: Final = f"{_DECIDE}budget.py"
_PLACEMENT: Final = f"{_DECIDE}placement.py"
_GATES: Final = f"{_DECIDE}gates.py"
_MEMBERS: Final = f"{_DECIDE}members.py"
_PLANS: Final = f"{_DECIDE}plans.py"
_STARTING: Final = f"{_DECIDE}starting.py"
_CLUSTER: Final = "operator/perdure_operator/cluster/"
_MEMBER: Final = f"{_CLUSTER}member.py"
_ROOTS: Final = f"{_CLUSTER}read/roots.py"

_OF_MARKS: Final = ("tests/unit/operator/api/test_marks.py",)
_OF_GANGS: Final = (
    "tests/unit/operator/decide/test_starting.py",
    "tests/unit/operator/test_gang_start.py",
)
_NO_CLASSES: Final = "the simulation's scheduler knows no priorities"
_NO_MARKS: Final = "the simulation's autoscaler takes nodes whatever pods say"

MEMBERS: Final = (
    Mutant(
        "the run that is on waits for a newcomer that is not Ready any more",
        _MEMBERS,
        "elif not pod.ready and pod.uid in on:",
        "elif not pod.ready:",
        ("readiness-lost", "scale"),
    ),
    Mutant(
        "a member that was Ready before counts as starting",
        f"{_DECIDE}waiting.py",
        "were_warm = [pod for pod in pods if pod.uid in _known_warm(draft)]",
        "were_warm = [pod for pod in pods if pod.uid not in _known_warm(draft)]",
        ("readiness-lost",),
    ),
    Mutant(
        "a member without an IP is promoted",
        _PLACEMENT,
        'well = pod.phase == "Running" and bool(pod.ip) and not pod.deleting',
        'well = pod.phase == "Running" and not pod.deleting',
        ("started-without-address",),
    ),
    Mutant(
        "members are promoted though their budget was refused",
        _STARTING,
        "if missing or refused(draft, members):",
        "if missing:",
        ("budget-gone-at-start",),
    ),
    Mutant(
        "a refusal of the budget is remembered after it was created",
        f"{_CLUSTER}read/observe.py",
        "created = record.members - own | (set() if budget else budgets)",
        "created = record.members - own | budgets",
        ("budget-made-unheard",),
    ),
    Mutant(
        "a changed role label is not restored",
        _MEMBERS,
        "if pod.assignment != text or pod.role != Role.MEMBER:",
        "if pod.assignment != text:",
        ("remove-role-label", "drain"),
    ),
    Mutant(
        "an earlier job's pods are looked for only once",
        _GATES,
        "if draft.snapshot.deleting:",
        "if draft.snapshot.deleting or draft.next_members:",
        ("predecessor-comes-back",),
    ),
    Mutant(
        "jobs that share the root are looked for only once",
        _GATES,
        "if draft.blocked or not others:",
        "if draft.blocked or not others or draft.next_members:",
        ("root-of-another",),
    ),
    Mutant(
        "an earlier job's orphaned pods are left alone",
        _GATES,
        "orphans = [pod for pod in earlier if not pod.owner_uid and not pod.deleting]",
        "orphans = [pod for pod in earlier if pod.owner_uid and not pod.deleting]",
        ("orphan-and-apply",),
    ),
    Mutant(
        "one bucket name on two endpoints is taken for one root",
        _ROOTS,
        'return "s3", _endpoint(spec), uri',
        'return "s3", uri',
        ("stranger-with-my-root",),
    ),
    Mutant(
        "one folder on two volume claims is taken for one root",
        _ROOTS,
        'return kind, namespace, str(source.get("claimName")), str(inside)',
        "return kind, namespace, str(inside)",
        ("stranger-with-my-root",),
    ),
    Mutant(
        "a suspended job holds its root",
        f"{_CLUSTER}read/records.py",
        "return bool(self.members) or not (self.deleting or (self.spec is not None and self.spec.suspend))",
        "return bool(self.members) or not self.deleting",
        ("stranger-with-my-root",),
    ),
    Mutant(
        "a budget that a user has edited stays as it is",
        _BUDGET,
        "(budget and not budget.altered and budget.min_available >= wanted)",
        "(budget and budget.min_available >= wanted)",
        ("edit-budget",),
    ),
    Mutant(
        "a budget that a user has given maxUnavailable is mended in one field only",
        f"{_CLUSTER}write/writes.py",
        'return [*tests, {"op": "replace", "path": "/spec", "value": spec}]',
        'return [*tests, {"op": "add", "path": "/spec/minAvailable", "value": spec["minAvailable"]}]',
        ("edit-budget",),
    ),
    Mutant(
        "a foreign pod with our labels opens the budget",
        _BUDGET,
        "return count + len(draft.snapshot.foreign_pods) if names else 0",
        "return count if names else 0",
        ("foreign-pod-with-labels", "drain"),
    ),
    Mutant(
        "the budget is lowered before labels are gone",
        _BUDGET,
        "count = max(len(labelled), len(counted | names), following)",
        "count = len(names)",
        ("scale", "drain"),
    ),
    Mutant(
        "members are labelled before the budget counts them",
        _TABLES,
        "    protect,  # the budget before pods and labels\n    create,\n    assign,  # ranks to the pods\n",
        "    create,\n    assign,\n    protect,\n",
        ("scale", "api-slow"),
    ),
    Mutant(
        "an edited template is tried at the next start only",
        _TABLES,
        "Stage.RUNNING: (name_leavers, try_template, back_off_growth, detect_disruption),",
        "Stage.RUNNING: (name_leavers, back_off_growth, detect_disruption),",
        ("invalid-template",),
    ),
    Mutant(
        "a vanished name is created again after another was refused",
        _PLACEMENT,
        "if name in snapshot.created:",
        "if name in snapshot.created and not snapshot.refusals:",
        ("taken-under-quota",),
    ),
    Mutant(
        "a pod whose creation was never answered is taken for not created",
        f"{_CLUSTER}write/writes.py",
        "memory.created.add(action.name)  # without an answer it may exist",
        "memory.created.discard(action.name)",
        ("taken-unheard",),
    ),
    Mutant(
        "names that an earlier operator has allocated are used",
        _PLACEMENT,
        'return "" if name in snapshot.allotted else',
        'return "" if name else',
        ("taken-in-a-crash",),
    ),
    Mutant(
        "replacing members has no pause",
        _STARTING,
        "return doubled(replaced.last_time, replaced.count - 1) if",
        "return replaced.last_time if",
        ("reaper",),
    ),
    Mutant(
        "replacements are not counted",
        "operator/perdure_operator/decide/facts.py",
        "known, count = (old.nodes, old.count + 1) if old and goes_on else ((), 1)",
        "known, count = (old.nodes, 1) if old and goes_on else ((), 1)",
        ("reaper", "node-deleted-without-taint"),
    ),
    Mutant(
        "successors are not kept off a node that goes away without a taint",
        _MEMBERS,
        "apart, template = stays_apart(draft), fallback(draft)",
        "apart, template = False, fallback(draft)",
        ("goes-and-no-other-has-room",),
    ),
    Mutant(
        "an edit to something invalid takes the training down at the next drain",
        f"{_DECIDE}facts.py",
        "if one.name == name and one.hash), None)",
        "if one.name == name and not one.hash), None)",
        ("started-from-an-invalid-template",),
    ),
    Mutant(
        "idle pods do not hold the place on a node that goes away",
        _PLACEMENT,
        "return frozenset(islice(by_node.values(), _most_held(draft)))",
        "return frozenset()",
        ("goes-and-no-other-has-room",),
    ),
    Mutant(
        "a member's number is used twice",
        f"{_DECIDE}standby_pool.py",
        "return draft.update(next_member=first + len(new)), new",
        "return draft.update(next_member=first), new",
        ("suspended-until-empty",),
    ),
    Mutant(
        "two runs in a row use the same port",
        _PLANS,
        "FIRST_PORT + run % PORTS",
        "FIRST_PORT",
        ("scale", "drain"),
    ),
    Mutant(
        "rank 0 opens the log without waiting for the run before",
        _PLANS,
        "wait=seconds + WAIT_MARGIN_SECONDS if status.run else 0,",
        "wait=0,",
        ("status-restored", "scale"),
    ),
    Mutant(
        "members that are written off keep their role",
        _MEMBERS,
        "if pod.role == Role.MEMBER and not terminated(pod):",
        "if pod.role == Role.FORMER and not terminated(pod):",
        ("node-power", "partition"),
    ),
    Mutant(
        "an idle pod gets the grace of one that has to save",
        _PLACEMENT,
        "return IDLE_GRACE_SECONDS if idle(pod) else None",
        "return None",
        ("scale", "suspend-and-resume"),
    ),
    Mutant(
        "a pod deleted before its agent has handlers waits its grace out",
        _MEMBER,
        '"lifecycle": {"preStop": {"exec": {"command": ["perdure", "stop"]}}} | (',
        '"lifecycle": {} | (',
        ("deleted-at-its-first-line",),
    ),
    Mutant(
        "terminationGracePeriodSeconds: null is taken for a number",
        _MEMBER,
        'if spec.get("terminationGracePeriodSeconds") is None:',
        'if "terminationGracePeriodSeconds" not in spec:',
        ("null-grace", "drain"),
    ),
    Mutant(
        "the scale subresource counts standbys and formers",
        f"{_DECIDE}summary.py",
        "names.LABEL_UID: draft.snapshot.uid, LABEL_ROLE: Role.MEMBER.value}",
        "names.LABEL_UID: draft.snapshot.uid}",
        ("scale",),
    ),
    Mutant(
        "a promoted member keeps the annotation that its node must stay",
        _MEMBERS,
        "marks(mode, roles.get(pod.uid, pod.role))",
        "marks(mode, pod.role)",
        tests=_OF_MARKS,
        outside=_NO_MARKS,
    ),
    Mutant(
        "a mark that is not the operator's is taken away",
        _MEMBERS,
        "if wanted != pod.marks and (wanted or marked(pod.marks)):",
        "if wanted != pod.marks:",
        tests=_OF_MARKS,
        outside=_NO_MARKS,
    ),
    Mutant(
        "a new member may be consolidated away before it trains",
        "operator/perdure_operator/api/marks.py",
        "if mode is Autoscaler.COOPERATIVE and role == Role.MEMBER:",
        "if mode is Autoscaler.COOPERATIVE:",
        tests=_OF_MARKS,
        outside=_NO_MARKS,
    ),
    Mutant(
        "pending joiners count as the replacements of leavers",
        f"{_DECIDE}succession.py",
        "there = sum(name in pods and pods[name].priority_class != named for name in draft.next_members)",
        "there = sum(name in pods for name in draft.next_members)",
        tests=("tests/unit/operator/decide/test_joiner_classes.py",),
        outside=_NO_CLASSES,
    ),
    Mutant(
        "a replacement has the priority class of joiners",
        f"{_DECIDE}succession.py",
        "dict.fromkeys(new[max(replacements - there, 0) :], named)",
        "dict.fromkeys(new, named)",
        tests=("tests/unit/operator/decide/test_joiner_classes.py",),
        outside=_NO_CLASSES,
    ),
    Mutant(
        "a job that waits for nodes releases those that it does not hold",
        _STARTING,
        "return 0 < self.placed < self.needed and self.roomless > 0",
        "return self.placed < self.needed and self.roomless > 0",
        tests=_OF_GANGS,
    ),
    Mutant(
        "the oldest job lets go of its nodes with all the others",
        _STARTING,
        "timeout * (1 + min(younger, MOST_YIELDS))",
        "timeout",
        tests=_OF_GANGS,
    ),
    Mutant(
        "a job that can never begin holds nodes for ever",
        _STARTING,
        "timeout * (1 + min(younger, MOST_YIELDS))",
        "timeout * (1 + younger)",
        tests=_OF_GANGS,
    ),
    Mutant(
        "a job that has released its nodes takes them again at once",
        _STARTING,
        "gang.generation != draft.snapshot.generation or draft.now >= gang.until:",
        "gang.generation != draft.snapshot.generation or draft.now <= gang.until:",
        tests=_OF_GANGS,
    ),
    Mutant(
        "a younger job that has let go is waited for no longer",
        "operator/perdure_operator/cluster/read/records.py",
        "return holds or (gang is not None and gang.until > now)",
        "return holds",
        tests=("tests/unit/operator/test_gang_start.py", "tests/unit/operator/cluster/read"),
    ),
    Mutant(
        "a smaller run leaves a member on each node",
        f"{_DECIDE}succession.py",
        "        if len(chosen) + len(members) <= count:\n",
        "        if len(chosen) + len(members) < count:\n",
        tests=("tests/unit/operator/decide/test_succession.py",),
    ),
    Mutant(
        "a run that comes down to a size keeps the lowest ranks, wherever they are",
        f"{_DECIDE}preparing.py",
        "keep(draft, roles.stays, size)",
        "roles.stays[:size]",
        tests=("tests/unit/operator/decide/test_growing.py",),
    ),
)
