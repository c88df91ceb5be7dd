"""Every condition type and every reason the operator can give, each with its meaning and what the user should do.

The reference in the documentation is compared with this file. A reason is used in conditions, in events, or in both;
`decide` is the only one that gives them. Nothing here may depend on a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ConditionType(StrEnum):
    """The `type` of a condition, in the order in which status lists them: what people look for comes first."""

    RUNNING = "Running"
    DISRUPTED = "Disrupted"
    SAVED = "Saved"
    PROTECTED = "Protected"
    SIZED = "Sized"
    TEMPLATE_ACCEPTED = "TemplateAccepted"
    SPEC_UNDERSTOOD = "SpecUnderstood"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"


CONDITION_TYPES: Final[Mapping[ConditionType, str]] = {
    ConditionType.RUNNING: "True while every member is Ready and has its ranks, which does not say that they get on; "
    "otherwise says what is awaited, from whom and until when.",
    ConditionType.DISRUPTED: "True from the first signal that the run has to end until its successor is planned.",
    ConditionType.SAVED: "How the last run ended: True where it has saved or handed over all that it had; False where "
    "it failed, also if no step is lost by that: the message says how many are.",
    ConditionType.PROTECTED: "True while the job's PodDisruptionBudget, and no other, covers its members; "
    "absent while it has none.",
    ConditionType.SIZED: "True while the run has the wanted size; says how many members that is, and why, and how many "
    "spares are warm; only of jobs with spec.elastic, while a run is on.",
    ConditionType.TEMPLATE_ACCEPTED: "False while the API server would refuse pods of spec.template; absent while "
    "nothing was ever wrong with it.",
    ConditionType.SPEC_UNDERSTOOD: "False while the spec has fields that this operator ignores; absent where it never "
    "had any.",
    ConditionType.SUSPENDED: "True while spec.suspend keeps the job without members.",
    ConditionType.COMPLETED: "True once the training has reached its goal. Final.",
    ConditionType.FAILED: "True once the job has been given up; the message says why. Final.",
}


class Reason(StrEnum):
    """The `reason` of a condition or of an event."""

    # Running
    ASSIGNED = "Assigned"
    CHECKING_TEMPLATE = "CheckingTemplate"
    TEMPLATE_INVALID = "TemplateInvalid"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    WAITING_FOR_PREDECESSOR = "WaitingForPredecessor"
    SHARED_ROOT = "SharedRoot"
    BEING_DELETED = "BeingDeleted"
    BACKOFF = "Backoff"
    STARTING_MEMBERS = "StartingMembers"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    AGENT_MISSING = "AgentMissing"
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    CONTAINER_ENDED = "ContainerEnded"
    GANG_RELEASED = "GangReleased"
    REPLACING_MEMBERS = "ReplacingMembers"
    ASSIGNING = "Assigning"
    NODE_UNREACHABLE = "NodeUnreachable"
    MASS_OUTAGE = "MassOutage"
    EXIT_SAVE = "ExitSave"
    STOPPING = "Stopping"
    DELETING_MEMBERS = "DeletingMembers"
    MEMBER_STUCK = "MemberStuck"
    MEMBER_NOT_READY = "MemberNotReady"
    PATCH_REFUSED = "PatchRefused"
    # Disrupted; the first eight are also the reasons of events
    NODE_LEAVING = "NodeLeaving"
    NODE_FAULT = "NodeFault"
    SIZE_CHANGE = "SizeChange"
    MEMBER_LOST = "MemberLost"
    MEMBER_DELETED = "MemberDeleted"
    RUN_LOST = "RunLost"
    SUSPEND = "Suspend"
    STOP = "Stop"
    OTHER = "Other"
    UNDISTURBED = "Undisturbed"
    # Saved, and the event at the end of a run
    HANDED_OVER = "HandedOver"
    CHECKPOINTED = "Checkpointed"
    NOTHING_TO_SAVE = "NothingToSave"
    EXIT_TIMEOUT = "ExitTimeout"
    CODE_FAILURE = "CodeFailure"
    INFRASTRUCTURE_FAILURE = "InfrastructureFailure"
    OUT_OF_MEMORY = "OutOfMemory"
    LOG_LOST = "LogLost"
    STORAGE_REFUSED = "StorageRefused"
    CHECKPOINTS_DAMAGED = "CheckpointsDamaged"
    FENCED = "Fenced"
    UNKNOWN_END = "UnknownEnd"
    # Protected
    BUDGET_IN_PLACE = "BudgetInPlace"
    BUDGET_MISSING = "BudgetMissing"
    FOREIGN_PODS = "ForeignPods"
    PDB_CONFLICT = "PDBConflict"
    CATCH_ALL_TOLERATION = "CatchAllToleration"
    # Sized
    WANTED_SIZE = "WantedSize"
    OTHER_SIZE = "OtherSize"
    FIXED_SIZE = "FixedSize"
    # TemplateAccepted
    TEMPLATE_ACCEPTED = "TemplateAccepted"
    # SpecUnderstood
    UNKNOWN_FIELDS = "UnknownFields"
    ALL_FIELDS_KNOWN = "AllFieldsKnown"
    # Suspended
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    # Completed
    COMPLETED = "Completed"
    # Failed
    FAILED = "Failed"
    TOO_MANY_CODE_FAILURES = "TooManyCodeFailures"
    TOO_MANY_INFRASTRUCTURE_FAILURES = "TooManyInfrastructureFailures"
    TOO_MANY_OUT_OF_MEMORY = "TooManyOutOfMemoryFailures"
    ROOT_TAKEN_OVER = "RootTakenOver"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    # events only
    RUN_PLANNED = "RunPlanned"
    WITHDRAWN = "Withdrawn"
    SAVE_ASKED = "SaveAsked"
    SAVE_NOT_ASKED = "SaveNotAsked"
    MEMBER_REPLACED = "MemberReplaced"
    STANDBYS_NOT_READY = "StandbysNotReady"
    HANDOVER_FAILED = "HandoverFailed"
    COMMIT_SKIPPED = "CommitSkipped"
    ASSIGNMENT_NUDGED = "AssignmentNudged"
    GROWTH_GIVEN_UP = "GrowthGivenUp"
    SPARE_REPLACED = "SpareReplaced"
    BUDGET_RESTORED = "BudgetRestored"
    LABEL_RESTORED = "LabelRestored"
    CLASSIC_SIDECAR = "ClassicSidecar"


@dataclass(frozen=True)
class Explained:
    """What a reason means and what to do about it; `remedy` is "" where there is nothing to do."""

    meaning: str
    remedy: str = ""
    ends: str = ""
    """What ends a wait for this reason that has no time limit; "" where the message names the time."""


REASONS: Final[Mapping[Reason, Explained]] = {
    Reason.ASSIGNED: Explained(
        "Every member is Ready and has its ranks. Whether they train is not known: members report when they end.",
        "Nothing; `kubectl logs` of a member shows what it does.",
    ),
    Reason.CHECKING_TEMPLATE: Explained(
        "The pod template is being tried in a server-side dry run.",
        "Nothing; if it stays, the operator's log says what the API server answers.",
        ends="the dry run is repeated every 10 s until the API server answers",
    ),
    Reason.TEMPLATE_INVALID: Explained(
        "The API server refuses pods of this template. Where an earlier one was accepted, members are made from that "
        "until it is corrected, and the job goes on.",
        "Correct spec.template as the message says; the job goes on.",
        ends="it is tried again every minute, and at once when it changes",
    ),
    Reason.QUOTA_EXCEEDED: Explained(
        "A resource quota of the namespace leaves no room for a member.",
        "Raise the quota or free some of it.",
        ends="it is tried again until there is room",
    ),
    Reason.POD_REFUSED: Explained(
        "The API server or an admission webhook refuses a member.",
        "Follow the message of whoever refused it.",
        ends="it is tried again until the member is admitted",
    ),
    Reason.WAITING_FOR_PREDECESSOR: Explained(
        "Pods of an earlier job of this name may still be writing to the same checkpoints.",
        "Wait, or delete those pods; one that outlives its deletion is named as MemberStuck, and one on an unreachable "
        "node is given up after failure.lostNodeSeconds.",
    ),
    Reason.SHARED_ROOT: Explained(
        "An older live job has the same checkpoint.uri; two jobs cannot write one log.",
        "Give this job a uri of its own, or delete the other job.",
        ends="this job starts once the other one is finished or deleted",
    ),
    Reason.BEING_DELETED: Explained(
        "The job is being deleted, a finalizer still keeps it, and its last run is over: no other follows.",
        "Nothing; if it stays, look who has put a finalizer into its metadata.",
        ends="the job goes when its last finalizer is removed",
    ),
    Reason.BACKOFF: Explained(
        "A pause after a failure, doubled with each failure that brought no new commit.",
        "Nothing; the condition Saved tells of the failure.",
    ),
    Reason.STARTING_MEMBERS: Explained(
        "Members have been created and are not Ready yet.",
        "Nothing; if it stays, `kubectl describe pod` shows what they wait for.",
        ends="the job goes on when the kubelets report every member Ready",
    ),
    Reason.UNSCHEDULABLE: Explained(
        "The scheduler finds no node for a member.",
        "Add nodes or lower the requests.",
        ends="the job goes on when the scheduler finds a node",
    ),
    Reason.IMAGE_PULL_FAILED: Explained(
        "A node cannot pull the image of a member.",
        "Correct the image's name or its pull secret in spec.template.",
        ends="the kubelet goes on trying",
    ),
    Reason.AGENT_MISSING: Explained(
        "The image of container 0 has no `perdure` on its PATH.",
        "Install perdure in the image, change spec.template or delete the pod to try again.",
        ends="nothing is tried again by itself",
    ),
    Reason.CONTAINER_NOT_CREATED: Explained(
        "A node cannot create the container of a member, most often because of a missing Secret or ConfigMap.",
        "Create what the message names.",
        ends="the kubelet goes on trying",
    ),
    Reason.CONTAINER_ENDED: Explained(
        "A container beside container 0 crashes again and again, or has ended: its member is not Ready.",
        "Mend the container that the message names; one that runs beside the training belongs under initContainers "
        "with restartPolicy Always.",
        ends="the job goes on when the kubelet reports the member Ready",
    ),
    Reason.GANG_RELEASED: Explained(
        "Some members held nodes for startTimeoutSeconds while others found no room: all were let go, so that another "
        "job that needs these nodes can begin, and are made again after a pause.",
        "Make room for all of them at once, or ask for fewer, or allow fewer by elastic.minReplicas; any edit of the "
        "spec ends the pause.",
    ),
    Reason.REPLACING_MEMBERS: Explained(
        "Members could not train and were replaced, several times in a row: a pause comes before the next ones, doubled"
        " each time.",
        "Stop what the message names: who deletes the pods, or a toleration in spec.template of the leaving node's "
        "taint; any edit of the spec ends the pause.",
    ),
    Reason.ASSIGNING: Explained(
        "The members are being told their ranks.",
        "Nothing; if it stays, the operator's log says what the API server answers.",
        ends="it is tried again until every member has been told",
    ),
    Reason.MASS_OUTAGE: Explained(
        "So many nodes are not Ready at once that the control plane is more likely at fault: members may well be "
        "training, and none is given up yet.",
        "Look at the control plane and the network; failure.massOutageSeconds bounds the wait.",
    ),
    Reason.NODE_UNREACHABLE: Explained(
        "A node under a member is not Ready: nobody there can be asked to save.",
        "Nothing, if it comes back; failure.lostNodeSeconds after it went its members are given up.",
    ),
    Reason.MEMBER_NOT_READY: Explained(
        "A member that was warm is not Ready any more, and its node is: its trainer has ended, or its kubelet cannot "
        "tell. The others may well be training.",
        "Look at the pod that the message names: `kubectl describe pod`, and its log.",
        ends="the member is Ready again, or it ends, and the job goes on without it",
    ),
    Reason.EXIT_SAVE: Explained(
        "Members save and leave; the message names them and the time they have.",
        "Nothing; whoever has not saved by then is deleted 30 s later, and the steps since the last commit are lost.",
    ),
    Reason.STOPPING: Explained(
        "A member is lost: the others of its run are being stopped.",
        "Nothing; whoever still runs by then is deleted.",
    ),
    Reason.DELETING_MEMBERS: Explained(
        "Members did not leave in time and have been deleted.",
        "Nothing; a pod whose container does not end with its grace is named as MemberStuck.",
    ),
    Reason.MEMBER_STUCK: Explained(
        "A deleted member outlives its grace on a node that is Ready: the kubelet does not do its work, or the process "
        "cannot be killed. It is never deleted by force, for it may still train.",
        "Restart the node's kubelet, or the node; delete the pod by force only once its process is known to be dead.",
        ends="the job goes on once container 0 has ended, the pod is gone, or its node has not been Ready for "
        "failure.lostNodeSeconds",
    ),
    Reason.PATCH_REFUSED: Explained(
        "Admission (a webhook or a policy) refuses the change of a member's annotation and label by which it is told "
        "what to do.",
        "Let the operator's ServiceAccount update pods that have the label perdure.dev/job.",
        ends="it is tried again until it is let through; members that have to leave are deleted after 10 s, which asks "
        "them to save within their terminationGracePeriodSeconds",
    ),
    Reason.NODE_LEAVING: Explained(
        "A node under a member is about to go away, or the member itself has to leave it; the message says why."
    ),
    Reason.NODE_FAULT: Explained(
        "A node under a member, or a device of its own, is broken in a way that makes its work suspect: nothing is "
        "saved, and the job goes on from its last commit.",
        "Have the node repaired; `perdure-operator signals --node` and `--pod` say which row of the table it is.",
    ),
    Reason.SIZE_CHANGE: Explained("replicas or processesPerReplica have changed."),
    Reason.MEMBER_LOST: Explained("A member ended without being asked to."),
    Reason.MEMBER_DELETED: Explained("Somebody has deleted a member; it saves within its own grace period."),
    Reason.RUN_LOST: Explained(
        "A member that was to save and leave has ended without that: the next run would wait for a save that never "
        "comes, and is planned anew with the same members."
    ),
    Reason.SUSPEND: Explained("spec.suspend was set."),
    Reason.STOP: Explained("activeDeadlineSeconds is over."),
    Reason.OTHER: Explained("A reason that only a newer operator knows; its move is finished all the same."),
    Reason.UNDISTURBED: Explained("Nothing asks the run to end."),
    Reason.HANDED_OVER: Explained(
        "The next run has taken this one over between two batches: its processes train on, and nothing is lost."
    ),
    Reason.CHECKPOINTED: Explained("The run ended with a commit of its last step: nothing is lost."),
    Reason.NOTHING_TO_SAVE: Explained("The run ended before it had done a step."),
    Reason.EXIT_TIMEOUT: Explained(
        "The exit save was not finished within exitTimeoutSeconds: the steps since the last commit are lost.",
        "Raise disruption.exitTimeoutSeconds, and see whether the script still calls step().",
    ),
    Reason.CODE_FAILURE: Explained(
        "The script of a rank raised an exception or exited by itself.", "Read the traceback in the message."
    ),
    Reason.INFRASTRUCTURE_FAILURE: Explained(
        "A member was killed from outside, its node went away, the storage failed, or a new member failed before its "
        "first step beside others that have trained."
    ),
    Reason.OUT_OF_MEMORY: Explained(
        "The kernel killed a member at its memory limit; a run that needs more than it may have dies each time alike.",
        "Raise the memory limit of the container that was killed, or let it use less.",
    ),
    Reason.LOG_LOST: Explained(
        "The log holds less than members have told of: objects under checkpoint.uri were deleted, so no run may begin.",
        "Restore log/ and data/ there, or set checkpoint.resumeAnyway to go on from what is left.",
    ),
    Reason.STORAGE_REFUSED: Explained(
        "The store refuses the members and will until somebody acts: no such bucket, access denied, wrong keys or a "
        "wrong endpoint, a read-only folder. It costs no failure.",
        "Do what the message says; members try it again at the time given there, and soon after an edit of the spec.",
    ),
    Reason.CHECKPOINTS_DAMAGED: Explained(
        "The log or every commit under checkpoint.uri is damaged, so no run may go on from there. It costs no failure.",
        "Restore the objects that the message names, or give checkpoint.uri another root to start over.",
    ),
    Reason.FENCED: Explained("Another writer owned the log; the next run takes a number above it."),
    Reason.UNKNOWN_END: Explained("No member left an outcome: the log says where training goes on."),
    Reason.BUDGET_IN_PLACE: Explained("Evictions wait until the members have saved."),
    Reason.BUDGET_MISSING: Explained("The PodDisruptionBudget has not been created yet."),
    Reason.FOREIGN_PODS: Explained(
        "Pods that are not the job's own have its labels: the budget counts them, so that it is raised by as many.",
        "Remove the labels from the pods that the message names.",
    ),
    Reason.BUDGET_RESTORED: Explained(
        "Somebody had changed the job's PodDisruptionBudget; it protects the members again.",
        "Leave it alone: it is the operator's.",
    ),
    Reason.LABEL_RESTORED: Explained(
        "Somebody had removed or changed a label of a member, without which it is neither watched nor protected.",
        "Leave the labels perdure.dev/job, perdure.dev/job-uid and perdure.dev/role alone.",
    ),
    Reason.PDB_CONFLICT: Explained(
        "A second PodDisruptionBudget matches the members: Kubernetes refuses every eviction of such a pod. Or one "
        "that is not the job's has the name of the job's own.",
        "Change the selector of the budget that the message names, or delete it.",
    ),
    Reason.WANTED_SIZE: Explained("The run has as many members as are wanted."),
    Reason.OTHER_SIZE: Explained(
        "The run has another number of members than is wanted; the message says what is done about it.",
        "Nothing, unless room is missing: then add nodes, or ask for fewer replicas.",
    ),
    Reason.FIXED_SIZE: Explained("spec.elastic has been removed: the job has the size of spec.replicas."),
    Reason.UNKNOWN_FIELDS: Explained(
        "The CRD takes fields that this operator does not know: they have no effect.",
        "Install the operator that belongs to the CRD, or remove the fields that the message names.",
    ),
    Reason.ALL_FIELDS_KNOWN: Explained("The operator knows every field of the spec again."),
    Reason.SUSPENDED: Explained(
        "The job has no members.",
        "Set spec.suspend to false to go on.",
        ends="the job goes on once spec.suspend is false",
    ),
    Reason.RESUMED: Explained("spec.suspend is false again."),
    Reason.COMPLETED: Explained("The training has reached its goal."),
    Reason.FAILED: Explained("The job has been given up; the condition Failed says why."),
    Reason.TOO_MANY_CODE_FAILURES: Explained(
        "More failures of the script in a row than failure.maxCodeFailures; the message ends with the traceback.",
        "Correct the script, then delete the job and apply it again: it resumes from its last commit.",
    ),
    Reason.TOO_MANY_INFRASTRUCTURE_FAILURES: Explained(
        "More failures of pods, nodes or storage without a new commit than failure.maxInfrastructureFailures.",
        "Look for the cause in the message, then delete the job and apply it again.",
    ),
    Reason.TOO_MANY_OUT_OF_MEMORY: Explained(
        "More out-of-memory kills in a row at the same place than failure.maxOutOfMemoryFailures.",
        "Raise the memory limit of the container that was killed, then delete the job and apply it again: it resumes.",
    ),
    Reason.ROOT_TAKEN_OVER: Explained(
        "Another job writes to the same checkpoint.uri.", "Give each job a uri of its own."
    ),
    Reason.DEADLINE_EXCEEDED: Explained("activeDeadlineSeconds is over."),
    Reason.TEMPLATE_ACCEPTED: Explained("The API server would create pods of the template as it is now."),
    Reason.CATCH_ALL_TOLERATION: Explained(
        "The template tolerates every taint: a taint NoExecute is no reason to leave, new members may land on a node "
        "that is going away, and Karpenter takes such a node without evicting them.",
        "Give the toleration without a key the keys that are meant.",
    ),
    Reason.CLASSIC_SIDECAR: Explained(
        "The template has a second container: it keeps a member's pod, and its devices, after the trainer has ended.",
        "Make it an init container with restartPolicy Always: Kubernetes ends it with the trainer.",
    ),
    Reason.RUN_PLANNED: Explained("All members are Ready; they are told their ranks now."),
    Reason.WITHDRAWN: Explained("The signal went away before anybody was asked to leave: the run goes on."),
    Reason.SAVE_ASKED: Explained(
        "A node announces what may end its members without a notice: the run was asked to save and trains on. The "
        "commit has the reason `asked` in the log.",
    ),
    Reason.SAVE_NOT_ASKED: Explained(
        "A node announces what may end its members without a notice, and with completion ExitCode nobody can be asked "
        "to save and train on.",
        "Use a Session, or give the signal another reaction in disruption.signals.",
    ),
    Reason.STANDBYS_NOT_READY: Explained(
        "New members for those that have to leave were not Ready in time: everybody saves and leaves, and the job "
        "starts anew.",
        "Leave room for a replacement, or raise disruption.replacementTimeoutSeconds.",
    ),
    Reason.HANDOVER_FAILED: Explained(
        "An attempt to hand the living run over did not come about: the run trains on, and it is tried once more, or "
        "its members save and go on in their pods; as often as it takes where new members fail by themselves.",
        "Nothing; if it comes again, mend what the message says of the newcomers, or look at their logs.",
    ),
    Reason.COMMIT_SKIPPED: Explained(
        "A run could not use the newest commit, for objects of it are missing or damaged, and has begun with an older "
        "one: the steps between them are trained again. It is told when a member of that run ends.",
        "Find out who deletes or changes objects below data/: a lifecycle rule, a person. `perdure verify` reads all.",
    ),
    Reason.ASSIGNMENT_NUDGED: Explained(
        "Members were told what to do and show no effect: a kubelet may have missed the change, so that another "
        "annotation of theirs (perdure.dev/nudge) is touched.",
        "Nothing, while it comes now and then; else look at the kubelets of the nodes that the message names.",
    ),
    Reason.GROWTH_GIVEN_UP: Explained(
        "New members for a larger run were not Ready within elastic.growTimeoutSeconds: they are let go, the run "
        "trains on as it is, and it is tried again later.",
        "Add nodes, or ask for fewer replicas; any edit of the spec ends the pause.",
    ),
    Reason.SPARE_REPLACED: Explained(
        "A spare cannot be used any more and is let go; another one is made, later each further time.",
        "Nothing; if it comes again, the message says what becomes of them.",
    ),
    Reason.MEMBER_REPLACED: Explained("A standby cannot be used and gets a successor with a new number."),
}
