"""Checks of a job before any object is created for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.pod.pool_rules import pod_problems
from rlhf_operator.clients.run_folders import OF_ANOTHER_JOB
from rlhf_operator.decide.node_pools import cluster_job, num_pods
from rlhf_operator.decide.observed import Observed, ObservedClaim, PlanResult, Refusal
from rlhf_operator.decide.pod_variables import may_have_further_variables, variables_of_all_workers
from rlhf_operator.decide.predicates import Snapshot


def is_refused(state: Snapshot) -> bool:
    """True if the job cannot run on this cluster."""
    return find_refusal(state.observed) is not None


def find_refusal(observed: Observed) -> Refusal | None:
    """Return why the job cannot run on this cluster, with what to do. None: it can, so far."""
    job = observed.job.job
    if observed.job.problem is not None or job is None:
        return observed.job.problem
    result = observed.plan or PlanResult()
    # The number of pods that share the claim depends on the plan.
    run = cluster_job(job, result.plan)
    # The planner's refusal comes after the simple checks: it may be a consequence of them.
    refusal = (
        _check_defaults(job)
        or _check_pods(job)
        or _check_code(job, observed.lacks_code)
        or _check_variables(job)
        or _check_storage(run, observed.claim)
        or _check_folder(observed)
    )
    return refusal or result.refusal or _check_objective(job, result)


def _check_defaults(job: RLHFJob) -> Refusal | None:
    spec = job.spec
    if spec.image is None:
        return Refusal(
            "NoImage",
            "spec.image is not set, and the chart's jobDefaults.image neither: set one of them to "
            "an image of the runtime",
        )
    if not spec.resources.node_pools:
        return Refusal(
            "NoNodePools",
            "spec.resources.nodePools is empty, and the chart's jobDefaults.nodePools, too: name "
            "at least one pool",
        )
    if spec.checkpoint.storage is None:
        return Refusal(
            "NoCheckpointStorage",
            "spec.checkpoint.storage is not set, and the chart's jobDefaults.storage neither: name "
            "a persistentVolumeClaim, so that a lost pod costs no work",
        )
    return None


def _check_pods(job: RLHFJob) -> Refusal | None:
    # The job's own templates fit together; with those of the chart they may not.
    lines = [
        str(replace(problem, location=("spec", "resources", *problem.location)))
        for layers in job.spec.resources.pod_layers()
        for problem in pod_problems(layers)
    ]
    if not lines:
        return None
    text = "\n".join(lines)
    return Refusal("PodInvalid", f"with the chart's jobDefaults the job's pods have:\n{text}")


def _check_objective(job: RLHFJob, result: PlanResult) -> Refusal | None:
    # The size of the cluster follows from the plan, so the driver cannot be the first to plan.
    objective = job.spec.placement.objective
    if not (result.unknown and objective.may_use_fewer_devices):
        return None
    return Refusal(
        "PlanUnknown",
        f"spec.placement.objective {objective.type.value} takes as many devices as the plan says, "
        "and the plan cannot be made before the cluster: got no plan, because "
        f"{result.unknown}; that is too late here. Write placement.objective.type: StepTime, with "
        "placement.maxDevices if it is to take fewer devices, or add what is unknown",
    )


def _check_code(job: RLHFJob, is_missing: bool) -> Refusal | None:
    code = job.spec.code
    if code is not None and code.local is not None:
        return Refusal(
            "CodeNotReachable",
            f"spec.code.local, got {code.local}, is a folder that only rlhf run can read: use "
            "spec.code.configMap, spec.code.git or an image that has the code",
        )
    if is_missing:
        return Refusal(
            "CodeNotFound",
            f"the ConfigMap {code_config_map(job)} of spec.code does not exist in this namespace: "
            "create it (kubectl create configmap NAME --from-file=FOLDER), or name another one",
        )
    return None


def _check_variables(job: RLHFJob) -> Refusal | None:
    if may_have_further_variables(job):
        return None
    known = variables_of_all_workers(job)
    for field, name in _header_variables(job):
        if name not in known:
            return Refusal(
                "VariableNotSet",
                f"{field} takes a value from a variable that not all pods have: got {name}, "
                "allowed a name in spec.env; add it there, with valueFrom.secretKeyRef if it is "
                "secret",
            )
    return None


def _header_variables(job: RLHFJob) -> Iterator[tuple[str, str]]:
    """Yield fields of headers, and the variables with their values."""
    for index, reward in enumerate(job.spec.rewards):
        for name in reward.service.variables if reward.service is not None else ():
            yield f"spec.rewards[{index}].{reward.chosen}.headers", name
    environment = job.spec.rollout.environment
    for name, server in environment.servers.items() if environment is not None else ():
        if server.header is not None:
            field = f"spec.rollout.environment.servers[{name}].header"
            yield field, server.header.value_from_env


def _check_storage(job: RLHFJob, claim: ObservedClaim | None) -> Refusal | None:
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.uri is not None:
        return Refusal(
            "NotOffered",
            "on a cluster a job's files are on one volume that all its pods mount: got "
            f"checkpoint.storage.uri {storage.uri}, allowed persistentVolumeClaim",
        )
    if storage is None or storage.persistent_volume_claim is None or claim is None:
        return None
    name = storage.persistent_volume_claim.claim_name
    if not claim.exists:
        return Refusal(
            "ClaimNotFound",
            f"the persistentVolumeClaim {name} of spec.checkpoint.storage does not exist in this "
            "namespace: create it, or name another one",
        )
    if not claim.is_shared:  # the head and the workers may be on different nodes
        return Refusal(
            "ClaimNotShared",
            f"the persistentVolumeClaim {name} is not ReadWriteMany, and the job has "
            f"{num_pods(job)} pods that write to it (the head and its workers): use a claim with "
            "that access mode",
        )
    return None


def _check_folder(observed: Observed) -> Refusal | None:
    owner = observed.folder_owner
    if owner is None:
        return None
    return Refusal(
        OF_ANOTHER_JOB,
        f"the folder {observed.job.run_folder} of spec.checkpoint.storage overlaps with that of "
        f"the job {owner}, which owns it as long as that job exists, ended or not: name another "
        "persistentVolumeClaim.subPath",
    )


def claim_name(job: RLHFJob | None) -> str | None:
    """Return the PersistentVolumeClaim for checkpoints. None: the job needs none."""
    storage = job.spec.checkpoint.storage if job else None
    claim = storage.persistent_volume_claim if storage else None
    return None if claim is None else claim.claim_name


def code_config_map(job: RLHFJob | None) -> str | None:
    """Return the ConfigMap with the job's own code. None: the job needs none."""
    code = job.spec.code if job else None
    return None if code is None or code.config_map is None else code.config_map.name
