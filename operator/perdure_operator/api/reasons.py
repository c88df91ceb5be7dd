"""Every condition type and every reason that the operator can give, with its meaning and the remedy.

The reference in the documentation is generated from this file. Conditions, events or both use a reason; only `decide`
gives them. Nothing here may depend on a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ConditionType(StrEnum):
    """The `type` of a condition, in the order of status: what people look for comes first."""

    RUNNING = "Running"
    PROGRESSING = "Progressing"
    DISRUPTED = "Disrupted"
    HANDING_OVER = "HandingOver"
    CHECKPOINT_FRESH = "CheckpointFresh"
    STORAGE_REACHABLE = "StorageReachable"
    SAVED = "Saved"
    PROTECTED = "Protected"
    SIZED = "Sized"
    TEMPLATE_ACCEPTED = "TemplateAccepted"
    SPEC_UNDERSTOOD = "SpecUnderstood"
    DELETIONS_ALLOWED = "DeletionsAllowed"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"


CONDITION_TYPES: Final[Mapping[ConditionType, str]] = {
    ConditionType.RUNNING: "True while every member is Ready and has its ranks; Progressing says whether "
    "training advances. Unknown if a member has ended while the run was being handed over, and the next run may "
    "have taken over before. Otherwise it says what the job waits for, whom it waits for, and until when.",
    ConditionType.PROGRESSING: "False while rank 0 reports no progress for longer than its phase may take: 5 "
    "minutes of training (30 before its pace is known), 15 of a save, an hour of an evaluation, 30 minutes otherwise, "
    "or ten usual steps where these take longer; its process judges that itself. Unknown while the run may be at work "
    "between two steps, and once no report has come for three minutes. Absent for a run that does not report, and "
    "before the second step that is reported.",
    ConditionType.DISRUPTED: "True from the first signal that the run has to end until its successor is planned.",
    ConditionType.HANDING_OVER: "True while a next run is offered to the living members of this one; absent until "
    "that happens for the first time.",
    ConditionType.CHECKPOINT_FRESH: "False if the newest commit that rank 0 reports is three periods of "
    "checkpoint.everySteps behind, or three of everySeconds old, and ten minutes in any case, without the pauses "
    "between two steps. Absent with everyEpochs, and without reports.",
    ConditionType.STORAGE_REACHABLE: "False while the periodic saves that rank 0 reports fail; the message says since "
    "when and why. Absent before its first save, and without reports.",
    ConditionType.SAVED: "How the last run ended. True if it saved or handed over everything. False if it failed, even "
    "if no step was lost; the message gives the number of lost steps.",
    ConditionType.PROTECTED: "True while the job's PodDisruptionBudget, and no other, covers its members; "
    "absent while the job has none.",
    ConditionType.SIZED: "True while the run has the wanted size. The message gives that size, its reason, and the "
    "number of warm spares. Only for jobs with spec.elastic, while a run is on.",
    ConditionType.TEMPLATE_ACCEPTED: "False while the API server would refuse pods of spec.template; absent if it "
    "never refused any.",
    ConditionType.SPEC_UNDERSTOOD: "False while the spec has fields that this operator ignores; absent if it never "
    "had any.",
    ConditionType.DELETIONS_ALLOWED: "False while the API server refuses to delete objects of the job; absent "
    "otherwise.",
    ConditionType.SUSPENDED: "True while spec.suspend keeps the job without members.",
    ConditionType.COMPLETED: "True once training has finished. Final.",
    ConditionType.FAILED: "True once the operator has given the job up; the message says why. Final.",
}


class Reason(StrEnum):
    """The `reason` of a condition or of an event."""

    # Running
    TRAINING = "Training"
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
    DELETION_REFUSED = "DeletionRefused"  # of DeletionsAllowed as well
    # Progressing, CheckpointFresh, StorageReachable
    STEPS_REPORTED = "StepsReported"
    STRAGGLER = "Straggler"
    MAY_BE_WORK = "MayBeWork"
    NO_PROGRESS = "NoProgress"
    MEMBER_WAITED_FOR = "MemberWaitedFor"
    RECENT_CHECKPOINT = "RecentCheckpoint"
    STALE_CHECKPOINT = "StaleCheckpoint"
    SAVES_SUCCEED = "SavesSucceed"
    SAVES_FAIL = "SavesFail"
    NOT_HEARD = "NotHeard"
    # HandingOver
    HANDOVER_OFFERED = "HandoverOffered"
    NO_HANDOVER = "NoHandover"
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
    BUDGET_REFUSED = "BudgetRefused"
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
    """What a reason means and what to do about it; `remedy` is "" if there is nothing to do."""

    meaning: str
    remedy: str = ""
    ends: str = ""
    """What ends a wait without a time limit; "" if the message names the time."""


REASONS: Final[Mapping[Reason, Explained]] = {
    Reason.TRAINING: Explained(
        "All members are Ready and have their ranks, and rank 0 reports new steps. status.progress says how far it is."
    ),
    Reason.STEPS_REPORTED: Explained(
        "Rank 0 reports new steps, or its process counts other progress, or is busy with what makes none for a while."
    ),
    Reason.STRAGGLER: Explained(
        "Training advances, and the member that the message names has worked one and a half times as long in each step "
        "as the others for a minute, so they wait for it. The operator does nothing about it.",
        "Compare that node with the others: other pods on it, its clock rate, its disk and network where the member "
        "waits for data. If the node is the cause, cordon it and delete the member: the job replaces it. If it is the "
        "rank, and not the node, its part of the work is larger: look at the script.",
    ),
    Reason.MAY_BE_WORK: Explained(
        "Rank 0 has made no new step for longer than its phase may take, and a member is in no call that waits for "
        "other ranks: it may evaluate without the session's loaders, or hang. For a minute, it may also be that not "
        "all members have said what they do; for half an hour, that one has never reported in this run; and for an "
        "hour, that one sees progress of its own while others wait for it, as in a save. It becomes False once that "
        "has lasted for an hour if the member computes, for half an hour if it stands still, or for "
        "`failure.progressTimeoutSeconds` if that is set.",
        "Nothing if the script works for so long between two steps; `perdure.poll(session)` in that work makes it "
        "progress, and `PERDURE_HANG_SECONDS` on container 0 gives another limit. Otherwise look for `no progress for` "
        "in the members' logs: the stacks of their threads follow.",
    ),
    Reason.NO_PROGRESS: Explained(
        "Rank 0 reports, and has made no progress for longer than its phase may take. Ranks may wait for each other, "
        "for data or for storage. The operator does nothing about it.",
        "Look at the last lines of each member's log: after a minute a rank says which ranks it waits for, and a "
        "process that hangs has written the stacks of its threads (`no progress for`). To start again from the newest "
        "commit, delete the member that is stuck.",
    ),
    Reason.MEMBER_WAITED_FOR: Explained(
        "The run makes no progress, and all members but the one that the message names say that they wait for other "
        "ranks. So the others probably wait for that one; several are named only if they are on one node. The operator "
        "does nothing about it.",
        "Look for `no progress for` in the log of the member that is named: the stacks of its threads follow. Without "
        "that line, an extension holds Python's lock, or the process is stopped. If its node is the cause, cordon it; "
        "to start again from the newest commit, delete that member.",
    ),
    Reason.RECENT_CHECKPOINT: Explained("A failure now loses no more steps than checkpoint allows."),
    Reason.STALE_CHECKPOINT: Explained(
        "The newest commit is three periods of checkpoint behind. A failure now loses the steps since then, unless "
        "members are left that have an image.",
        "Look at the condition StorageReachable, and at the log of rank 0: it says why a save failed or was left out.",
    ),
    Reason.SAVES_SUCCEED: Explained("The newest periodic save succeeded."),
    Reason.SAVES_FAIL: Explained(
        "Periodic saves fail, so members train on and try again. A drain waits for its save, and a failure loses the "
        "steps since the last commit.",
        "Do what the message says: it has the store's own words.",
    ),
    Reason.NOT_HEARD: Explained(
        "Rank 0 has reported before, and not for three minutes. That proves nothing about training: it may not reach "
        "the operator.",
        "If it lasts, look at the logs of rank 0's member: a line says why reports do not arrive.",
    ),
    Reason.HANDOVER_OFFERED: Explained(
        "The next run's members are warm, and the living ones hand over to them between two steps."
    ),
    Reason.NO_HANDOVER: Explained("No run is offered to the members."),
    Reason.ASSIGNED: Explained(
        "Every member is Ready and has its ranks. The operator does not know whether they train: members report only "
        "when they end.",
        "Nothing. `kubectl logs` of a member shows what it does.",
    ),
    Reason.CHECKING_TEMPLATE: Explained(
        "The operator tries the pod template in a server-side dry run.",
        "Nothing. If this stays, look in the operator's log for the API server's answer.",
        ends="the operator repeats the dry run every 10 s until the API server answers",
    ),
    Reason.TEMPLATE_INVALID: Explained(
        "The API server refuses pods of this template. If it accepted an earlier template, new members use that one, "
        "and the job goes on.",
        "Correct spec.template as the message says.",
        ends="the operator tries the template again every minute, and at once when it changes",
    ),
    Reason.QUOTA_EXCEEDED: Explained(
        "A resource quota of the namespace leaves no room for a member.",
        "Raise the quota, or free some of it.",
        ends="the operator tries again until there is room",
    ),
    Reason.POD_REFUSED: Explained(
        "The API server or an admission webhook refuses a member.",
        "Do what the message of the webhook or the API server says.",
        ends="the operator tries again until the member is admitted",
    ),
    Reason.WAITING_FOR_PREDECESSOR: Explained(
        "Pods of an earlier job of this name may still be writing to the same checkpoints.",
        "Wait, or delete those pods. A pod that outlives its deletion becomes MemberStuck. The operator gives up a pod "
        "on an unreachable node after failure.lostNodeSeconds.",
    ),
    Reason.SHARED_ROOT: Explained(
        "An older job that is not finished has the same checkpoint.uri. Two jobs cannot write one log.",
        "Give this job its own uri, or delete the other job.",
        ends="this job starts once the other one is finished or deleted",
    ),
    Reason.BEING_DELETED: Explained(
        "The job is being deleted and its last run is over; a finalizer still keeps the object.",
        "Nothing. If this stays, find out who put the finalizer into its metadata.",
        ends="the job goes when its last finalizer is removed",
    ),
    Reason.BACKOFF: Explained(
        "A pause after a failure. It doubles with each failure in a row without a new commit.",
        "Nothing. The condition Saved describes the failure.",
    ),
    Reason.STARTING_MEMBERS: Explained(
        "Members have been created and are not Ready yet.",
        "Nothing. If this stays, `kubectl describe pod` shows what they wait for.",
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
        ends="the kubelet keeps trying",
    ),
    Reason.AGENT_MISSING: Explained(
        "The trainer's image has no `perdure` on its PATH.",
        "Install perdure in the image. Then change spec.template or delete the pod.",
        ends="the operator does not try again by itself",
    ),
    Reason.CONTAINER_NOT_CREATED: Explained(
        "A node cannot create the container of a member, most often because of a missing Secret or ConfigMap.",
        "Create what the message names.",
        ends="the kubelet keeps trying",
    ),
    Reason.CONTAINER_ENDED: Explained(
        "A container beside the trainer has ended or crashes repeatedly, so its member is not Ready.",
        "Fix the container that the message names. A sidecar belongs under initContainers with restartPolicy Always.",
        ends="the job goes on when the kubelet reports the member Ready",
    ),
    Reason.GANG_RELEASED: Explained(
        "Some members held nodes for startTimeoutSeconds while others found none. The operator deleted all of them so "
        "that another job can use the nodes, and creates them again after a pause.",
        "Make room for all members at once, ask for fewer, or set elastic.minReplicas. Any edit of the spec ends the "
        "pause.",
    ),
    Reason.REPLACING_MEMBERS: Explained(
        "Members could not train and were replaced several times in a row. Before the next replacement the operator "
        "pauses, twice as long each time.",
        "Remove the cause that the message names: something deletes the pods, or spec.template tolerates the leaving "
        "node's taint. Any edit of the spec ends the pause.",
    ),
    Reason.ASSIGNING: Explained(
        "The operator assigns the members their ranks.",
        "Nothing. If this stays, look in the operator's log for the API server's answer.",
        ends="the operator tries again until every member has its ranks",
    ),
    Reason.MASS_OUTAGE: Explained(
        "So many nodes are not Ready at once that the control plane is the more likely cause. The members may still "
        "train, and the operator gives none of them up yet.",
        "Check the control plane and the network. failure.massOutageSeconds limits the wait.",
    ),
    Reason.NODE_UNREACHABLE: Explained(
        "A member's node is not Ready, so the member cannot be asked to save, and nobody can say whether it has ended.",
        "Nothing, if the node comes back. After failure.lostNodeSeconds the operator gives its members up.",
    ),
    Reason.MEMBER_NOT_READY: Explained(
        "A member that was Ready no longer is, although its node is: its trainer has ended, or the kubelet cannot "
        "probe it. The other members may still train.",
        "Look at the pod that the message names: `kubectl describe pod`, and its log.",
        ends="the member is Ready again, or it ends, and the job goes on without it",
    ),
    Reason.EXIT_SAVE: Explained(
        "Members save and exit. The message names them and their deadline.",
        "Nothing. The operator deletes members that have not saved 30 s after the deadline; the steps since the last "
        "commit are then lost.",
    ),
    Reason.STOPPING: Explained(
        "A member is lost, so the operator stops the other members of its run.",
        "Nothing. The operator deletes members that still run after the deadline.",
    ),
    Reason.DELETING_MEMBERS: Explained(
        "Members did not exit in time and have been deleted.",
        "Nothing. A pod that outlives its grace period on a Ready node becomes MemberStuck.",
    ),
    Reason.MEMBER_STUCK: Explained(
        "A deleted member outlives its grace period on a Ready node: the kubelet hangs, or the process cannot be "
        "killed. The operator never deletes it by force, because it may still train.",
        "Restart the kubelet or the node. Delete the pod by force only when you know that its process is dead.",
        ends="the job goes on once the trainer has ended, the pod is gone, or its node has not been Ready for "
        "failure.lostNodeSeconds",
    ),
    Reason.PATCH_REFUSED: Explained(
        "The API server refuses the operator's change of a member's annotation and label, which carry its assignment: "
        "a webhook, a policy or RBAC does not allow it.",
        "Do what the message of the API server says: it names the webhook or the policy, or the right that the "
        "operator's ServiceAccount lacks. It needs to update pods that have the label perdure.dev/job.",
        ends="the operator tries again until the API server allows it; it deletes members that have to leave after "
        "10 s, so that they save within their terminationGracePeriodSeconds",
    ),
    Reason.DELETION_REFUSED: Explained(
        "The API server refuses the operator's deletion of an object of this job: a webhook, a policy or RBAC does not "
        "allow it. A pod that is not deleted keeps its devices, and may keep the job from going on.",
        "Do what the message of the API server says: it names the webhook or the policy, or the right that the "
        "operator's ServiceAccount lacks. Or delete the object yourself.",
        ends="the operator tries again at least once a minute until the API server allows it",
    ),
    Reason.NODE_LEAVING: Explained(
        "A member's node is about to go away, or the member has to leave it; the message says why."
    ),
    Reason.NODE_FAULT: Explained(
        "A member's node or device is faulty, so what the member computed is suspect. The run saves nothing, and the "
        "job resumes from its last commit.",
        "Repair the node. `perdure-operator signals --node` and `--pod` show which signal it is.",
    ),
    Reason.SIZE_CHANGE: Explained("replicas or processesPerReplica have changed."),
    Reason.MEMBER_LOST: Explained("A member ended without being asked to."),
    Reason.MEMBER_DELETED: Explained("A member was deleted; it saves within its own grace period."),
    Reason.RUN_LOST: Explained(
        "A member that was asked to save has ended without a save. The next run would wait for that save forever, so "
        "the operator plans it again with the same members."
    ),
    Reason.SUSPEND: Explained("spec.suspend was set."),
    Reason.STOP: Explained("activeDeadlineSeconds is over."),
    Reason.OTHER: Explained("A reason that only a newer operator knows. This operator finishes the move all the same."),
    Reason.UNDISTURBED: Explained("Nothing asks the run to end."),
    Reason.HANDED_OVER: Explained(
        "The next run took over between two batches: its processes kept training, and nothing is lost."
    ),
    Reason.CHECKPOINTED: Explained("The run ended with a commit of its last step: nothing is lost."),
    Reason.NOTHING_TO_SAVE: Explained("The run ended before it had done a step."),
    Reason.EXIT_TIMEOUT: Explained(
        "The save at exit took longer than exitTimeoutSeconds: the steps since the last commit are lost.",
        "Raise disruption.exitTimeoutSeconds, and check that the script still calls step().",
    ),
    Reason.CODE_FAILURE: Explained(
        "The script of a rank raised an exception or exited by itself.", "Read the traceback in the message."
    ),
    Reason.INFRASTRUCTURE_FAILURE: Explained(
        "A member was killed from outside, its kubelet refused or evicted it, its node went away, the storage failed, "
        "or a new member failed before its first step beside others that have trained."
    ),
    Reason.OUT_OF_MEMORY: Explained(
        "The kernel killed a member at its memory limit. A run that needs more memory than its limit fails each time.",
        "Raise the memory limit of the container that was killed, or reduce its memory use.",
    ),
    Reason.LOG_LOST: Explained(
        "The log holds less than members reported: objects under checkpoint.uri were deleted, so no run can start.",
        "Restore log/ and data/ there, or set checkpoint.resumeAnyway to resume from what is left.",
    ),
    Reason.STORAGE_REFUSED: Explained(
        "The store refuses the members, and will until you act: no such bucket, access denied, wrong keys, a wrong "
        "endpoint, or a read-only folder. It does not count as a failure.",
        "Do what the message says. Members try again at the time given there, and soon after an edit of the spec.",
    ),
    Reason.CHECKPOINTS_DAMAGED: Explained(
        "The log or every commit under checkpoint.uri is damaged, so no run can resume. It counts as no failure.",
        "Restore the objects that the message names, or set checkpoint.uri to another root to start over.",
    ),
    Reason.FENCED: Explained("Another writer owned the log. The next run takes a higher run number."),
    Reason.UNKNOWN_END: Explained("No member left an outcome. Training resumes where the log says."),
    Reason.BUDGET_IN_PLACE: Explained("Evictions wait until the members have saved."),
    Reason.BUDGET_MISSING: Explained("The PodDisruptionBudget has not been created yet."),
    Reason.BUDGET_REFUSED: Explained(
        "The PodDisruptionBudget does not protect all members, and the API server refuses the operator's change of it: "
        "an eviction may end a member before it has saved.",
        "Do what the message of the API server says: it names the webhook or the policy, or the right that the "
        "operator's ServiceAccount lacks.",
    ),
    Reason.FOREIGN_PODS: Explained(
        "Pods that do not belong to the job have its labels. The budget counts them, so the operator raises it by "
        "their number.",
        "Remove the labels from the pods that the message names.",
    ),
    Reason.BUDGET_RESTORED: Explained(
        "The job's PodDisruptionBudget was changed. The operator restored it.",
        "Do not change it: the operator owns it.",
    ),
    Reason.LABEL_RESTORED: Explained(
        "A member's label was removed or changed. Without it the operator does not watch the pod, and the budget "
        "does not protect it.",
        "Do not change the labels perdure.dev/job, perdure.dev/job-uid and perdure.dev/role.",
    ),
    Reason.PDB_CONFLICT: Explained(
        "A second PodDisruptionBudget matches the members, so Kubernetes refuses every eviction. Or a foreign budget "
        "has the name of the job's budget.",
        "Change the selector of the budget that the message names, or delete it.",
    ),
    Reason.WANTED_SIZE: Explained("The run has the wanted number of members."),
    Reason.OTHER_SIZE: Explained(
        "The run does not have the wanted number of members. The message says what the operator does about it.",
        "Nothing, unless there is no room: then add nodes, or ask for fewer replicas.",
    ),
    Reason.FIXED_SIZE: Explained("spec.elastic has been removed: the job has the size of spec.replicas."),
    Reason.UNKNOWN_FIELDS: Explained(
        "The CRD allows fields that this operator does not know. They have no effect.",
        "Install the operator version of the CRD, or remove the fields that the message names.",
    ),
    Reason.ALL_FIELDS_KNOWN: Explained("The operator knows every field of the spec again."),
    Reason.SUSPENDED: Explained(
        "The job has no members.",
        "Set spec.suspend to false.",
        ends="the job goes on once spec.suspend is false",
    ),
    Reason.RESUMED: Explained("spec.suspend is false again."),
    Reason.COMPLETED: Explained("Training has finished."),
    Reason.FAILED: Explained("The operator has given the job up. The condition Failed says why."),
    Reason.TOO_MANY_CODE_FAILURES: Explained(
        "The script failed more times in a row than failure.maxCodeFailures. The message ends with the traceback.",
        "Correct the script, delete the job, and apply it again. It resumes from its last commit.",
    ),
    Reason.TOO_MANY_INFRASTRUCTURE_FAILURES: Explained(
        "Pods, nodes or storage failed more times without a new commit than failure.maxInfrastructureFailures.",
        "Remove the cause that the message names, delete the job, and apply it again.",
    ),
    Reason.TOO_MANY_OUT_OF_MEMORY: Explained(
        "Members ran out of memory at the same step, and were killed, more often than failure.maxOutOfMemoryFailures.",
        "Raise the memory limit of the container that was killed, delete the job, and apply it again. It resumes.",
    ),
    Reason.ROOT_TAKEN_OVER: Explained("Another job writes to the same checkpoint.uri.", "Give each job its own uri."),
    Reason.DEADLINE_EXCEEDED: Explained("activeDeadlineSeconds is over."),
    Reason.TEMPLATE_ACCEPTED: Explained("The API server accepts pods of the template."),
    Reason.CATCH_ALL_TOLERATION: Explained(
        "The template tolerates every taint. So a NoExecute taint does not make members leave, new members may land on "
        "a node that is going away, and Karpenter removes such a node without evicting them.",
        "Name the keys in the toleration that has none.",
    ),
    Reason.CLASSIC_SIDECAR: Explained(
        "The template has a second container. It keeps the pod, and its devices, after the trainer has ended.",
        "Make it an init container with restartPolicy Always, so that Kubernetes stops it with the trainer.",
    ),
    Reason.RUN_PLANNED: Explained("All members are Ready. The operator assigns their ranks."),
    Reason.WITHDRAWN: Explained("The signal went away before the operator asked any member to leave. The run goes on."),
    Reason.SAVE_ASKED: Explained(
        "A node announces something that may kill its members without notice, or a user gave the job the annotation "
        "perdure.dev/save, so the operator asked the run to save and keep training. The commit has the reason `asked` "
        "in the log.",
    ),
    Reason.SAVE_NOT_ASKED: Explained(
        "A node announces something that may kill its members without notice, or a user asked. With completion "
        "ExitCode the operator cannot ask them to save and keep training.",
        "Use a Session, or choose another reaction to the signal in disruption.signals.",
    ),
    Reason.STANDBYS_NOT_READY: Explained(
        "Replacements for the leaving members were not Ready in time. All members save and exit, and the job restarts "
        "from that commit.",
        "Leave room for a replacement, or raise disruption.replacementTimeoutSeconds.",
    ),
    Reason.HANDOVER_FAILED: Explained(
        "A live hand-over failed, and the run kept training. The operator tries once more; if that fails too, the "
        "members save and restart in their pods. If the new members themselves fail, it tries as often as needed.",
        "Nothing. If it repeats, fix what the message says of the new members, or look at their logs.",
    ),
    Reason.COMMIT_SKIPPED: Explained(
        "Objects of the newest commit are missing or damaged, so a run resumed from an older one and trains the steps "
        "between them again. The event comes when a member of that run ends.",
        "Find out what deletes or changes objects below data/, such as a lifecycle rule. `perdure verify` reads all.",
    ),
    Reason.ASSIGNMENT_NUDGED: Explained(
        "Members have a new assignment and do not react: a kubelet may have missed the change. The operator changes "
        "another annotation (perdure.dev/nudge) so that the kubelet syncs the pod again.",
        "Nothing, if it is rare. Otherwise look at the kubelets of the nodes that the message names.",
    ),
    Reason.GROWTH_GIVEN_UP: Explained(
        "New members for a larger run were not Ready within elastic.growTimeoutSeconds (without elastic: "
        "startTimeoutSeconds). The operator deleted them, the run goes on in its size, and the operator tries again "
        "later.",
        "Add nodes, or ask for fewer replicas. Any edit of the spec ends the pause.",
    ),
    Reason.SPARE_REPLACED: Explained(
        "A spare is no longer usable, so the operator deletes it and creates another, after a longer pause each time.",
        "Nothing. If it repeats, the message says what happens to the spares.",
    ),
    Reason.MEMBER_REPLACED: Explained("A standby is not usable. The operator replaces it with a pod of a new number."),
}
