"""Errors of the runtime.

RlhfError
└── RuntimeFailure
    ├── UnsupportedModel      the engines cannot exchange the model                  exit 3
    ├── GenerationFailed      vLLM ended a request abnormally                        exit 4
    ├── StaleWeights          generation weights differ from the trained ones        exit 1
    ├── NotLoaded             a role's weights are on the host                       exit 1
    ├── WorkerLost            a worker died                                          exit 4
    ├── NodeLost              a node of the workers has left the Ray cluster         exit 4
    ├── NoProgress            a worker hangs                                         exit 4
    ├── WorkerRaised          a worker raised no RlhfError                           exit 1
    ├── TrainingDiverged      no update was finite for many steps                    exit 3
    ├── OutOfMemory           a worker ran out of memory                             exit 4
    ├── UserCodeFailed        a custom operation or protocol raised                  exit 3
    ├── RequirementsFailed    pip cannot resolve or install code.requirements        exit 3
    ├── PackageIndexUnreachable  the package index does not answer                   exit 4
    ├── NotEnoughResources    shared memory or devices are missing                   exit 4
    ├── RayFailed             Ray did not start on this machine, or has died         exit 4
    ├── ForkServerFailed      the workers' libraries cannot be kept in memory        exit 4
    ├── RayUnreachable        the Ray cluster does not answer, or refuses the token  exit 4
    ├── NodesMissing          the cluster has fewer nodes than the plan needs        exit 4
    ├── DirtyCluster          an earlier driver's workers are still there            exit 4
    ├── FolderInUse           another run writes to the output folder                exit 2
    ├── FolderOfAnotherJob    the folder on the volume belongs to another job        exit 2
    ├── FolderUnusable        the output folder cannot be created or written         exit 2
    ├── CheckpointFailed      a checkpoint could not be written                      exit 4
    ├── StorageUnusable       checkpoints cannot be stored at the manifest's address exit 2
    ├── ModelNotSaved         the trained model could not be written                 exit 4
    ├── NoSpace               the disk was full for too long                         exit 4
    ├── StorageFailed         checkpoints can be neither read nor written there      exit 4
    ├── StorageInUse          another run saves its checkpoints there                exit 2
    ├── CannotResume          a fixed field of the manifest has changed              exit 2
    ├── CannotExport          a checkpoint's model cannot be exported                exit 2
    ├── ProfilingFailed       layers could not be measured on this machine           exit 4
    └── UnknownCall           a call that is not in the plan                         exit 1
"""

from __future__ import annotations

from pathlib import Path

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode
from rlhf_api.report import SavingProblem
from rlhf_runtime.disk_space import with_cause


class RuntimeFailure(RlhfError):
    """Something failed while a job ran."""

    reason = "RuntimeFailure"
    exit_code = ExitCode.BUG


class UnsupportedModel(RuntimeFailure):
    """An engine cannot compute the model, or engines cannot exchange its weights."""

    reason = "UnsupportedModel"
    exit_code = ExitCode.USER


class GenerationFailed(RuntimeFailure):
    """vLLM ended a request without a response."""

    reason = "GenerationFailed"
    exit_code = ExitCode.RETRIABLE


class StaleWeights(RuntimeFailure):
    """The generation engine's weights are not those of the trainer."""

    reason = "StaleWeights"
    exit_code = ExitCode.BUG


class NotLoaded(RuntimeFailure):
    """Weights and optimizer of a role are on the host, but needed on the device."""

    reason = "NotLoaded"
    exit_code = ExitCode.BUG


class WorkerLost(RuntimeFailure):
    """A worker process died."""

    reason = "WorkerLost"
    exit_code = ExitCode.RETRIABLE


class NodeLost(RuntimeFailure):
    """A node of the workers has left the Ray cluster: it was drained, preempted or lost."""

    reason = "NodeLost"
    exit_code = ExitCode.RETRIABLE


class NoProgress(RuntimeFailure):
    """A worker has done nothing for longer than failurePolicy.progressDeadlineSeconds."""

    reason = "NoProgress"
    exit_code = ExitCode.RETRIABLE


class WorkerRaised(RuntimeFailure):
    """A worker raised an unexpected error: a bug of this software."""

    reason = "WorkerRaised"
    exit_code = ExitCode.BUG


class TrainingDiverged(RuntimeFailure):
    """Loss or gradient were not finite for failurePolicy.maxSkippedSteps in a row."""

    reason = "TrainingDiverged"
    exit_code = ExitCode.USER


class OutOfMemory(RuntimeFailure):
    """A worker ran out of memory; the text compares with the plan."""

    reason = "OutOfMemory"
    exit_code = ExitCode.RETRIABLE


class UserCodeFailed(RuntimeFailure):
    """A custom operation or protocol raised, or returned an invalid result."""

    reason = "UserCodeFailed"
    exit_code = ExitCode.USER


class RequirementsFailed(RuntimeFailure):
    """pip cannot resolve or install the packages of code.requirements."""

    reason = "RequirementsFailed"
    exit_code = ExitCode.USER


class PackageIndexUnreachable(RuntimeFailure):
    """The index of the packages of code.requirements does not answer."""

    reason = "PackageIndexUnreachable"
    exit_code = ExitCode.RETRIABLE


class NotEnoughResources(RuntimeFailure):
    """The machine lacks shared memory, or devices of the plan."""

    reason = "NotEnoughResources"
    exit_code = ExitCode.RETRIABLE


class RayFailed(RuntimeFailure):
    """Ray could not be started on this machine, or one of its own processes has died."""

    reason = "RayFailed"
    exit_code = ExitCode.RETRIABLE


class ForkServerFailed(RuntimeFailure):
    """`rlhf standby` cannot keep the workers' libraries in memory."""

    reason = "ForkServerFailed"
    exit_code = ExitCode.RETRIABLE


class RayUnreachable(RuntimeFailure):
    """The Ray cluster that the driver belongs to does not answer, or refuses its token."""

    reason = "RayUnreachable"
    exit_code = ExitCode.RETRIABLE


class NodesMissing(RuntimeFailure):
    """The cluster had fewer nodes than the plan needs for too long."""

    reason = "NodesMissing"
    exit_code = ExitCode.RETRIABLE


class DirtyCluster(RuntimeFailure):
    """Workers of an earlier driver do not end."""

    reason = "DirtyCluster"
    exit_code = ExitCode.RETRIABLE


class ProfilingFailed(RuntimeFailure):
    """Layers could not be measured on this machine."""

    reason = "ProfilingFailed"
    exit_code = ExitCode.RETRIABLE


class UnknownCall(RuntimeFailure):
    """A step made a call that is not in the plan."""

    reason = "UnknownCall"
    exit_code = ExitCode.BUG


class CheckpointFailed(RuntimeFailure):
    """A checkpoint could not be written."""

    reason = "CheckpointFailed"
    exit_code = ExitCode.RETRIABLE


class StorageUnusable(RuntimeFailure):
    """Checkpoints cannot be stored at the manifest's address."""

    reason = "StorageUnusable"
    exit_code = ExitCode.MANIFEST


class ModelNotSaved(RuntimeFailure):
    """The trained model could not be written to the run's folder."""

    reason = "ModelNotSaved"
    exit_code = ExitCode.RETRIABLE


def model_not_saved(folder: Path, error: Exception) -> ModelNotSaved:
    """The error of a model that could not be written to a folder."""
    text = (
        f"the model could not be written: got {type(error).__name__}: {error} in {folder}; free "
        "space there; a run that has ended goes on from the newest checkpoint when the same "
        "command is given again"
    )
    return with_cause(ModelNotSaved(text), error)


class NoSpace(RuntimeFailure):
    """The disk is still full at the end of failurePolicy.spaceDeadlineSeconds, or before the start,
    when packages are installed."""

    # Operators do not restart a job for this reason.
    reason = SavingProblem.NO_SPACE.value
    exit_code = ExitCode.RETRIABLE
    is_disk_full = True


class StorageFailed(RuntimeFailure):
    """The storage of checkpoints cannot be reached, read or written."""

    reason = "StorageFailed"
    exit_code = ExitCode.RETRIABLE


class StorageInUse(RuntimeFailure):
    """Another run saves its checkpoints at the same address."""

    # Users match on reasons: this one does not follow the name of the class.
    reason = "StorageTaken"
    exit_code = ExitCode.MANIFEST


class FolderInUse(RuntimeFailure):
    """Another run writes to the output folder."""

    reason = "FolderInUse"
    exit_code = ExitCode.MANIFEST


class FolderOfAnotherJob(RuntimeFailure):
    """The run's folder on the cluster's volume belongs to a job of another name or namespace."""

    reason = "FolderOfAnotherJob"
    exit_code = ExitCode.MANIFEST


class FolderUnusable(RuntimeFailure):
    """The output folder cannot be created or written."""

    reason = "FolderUnusable"
    exit_code = ExitCode.MANIFEST


class CannotResume(RuntimeFailure):
    """The job cannot resume: a fixed field of its manifest has changed."""

    reason = "CannotResume"
    exit_code = ExitCode.MANIFEST


class CannotExport(RuntimeFailure):
    """No such checkpoint or role, a damaged one, or the model cannot be written there."""

    reason = "CannotExport"
    exit_code = ExitCode.MANIFEST
