"""All checks of a job that need no worker."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rlhf_api.plan import GraphName, ModelHead
from rlhf_api.spec.job import RLHFJob, RLHFJobSpec
from rlhf_flow.jobs.job_graphs import JobRole, job_roles, policy_role
from rlhf_flow.trace.graph import Graph
from rlhf_runtime.checkpoint.storage import require_persistent
from rlhf_runtime.data.load import PROMPTS_ONLY, DataUse
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.environments.settings import EnvironmentDescription
from rlhf_runtime.preflight.data import check_data, check_reward_tokenizers
from rlhf_runtime.preflight.environment_trial import try_environments
from rlhf_runtime.preflight.environments import check_environments
from rlhf_runtime.preflight.findings import Findings, Limits
from rlhf_runtime.preflight.models import ModelUse, RequiredHead, check_models
from rlhf_runtime.preflight.reward_trial import try_rewards
from rlhf_runtime.preflight.rewards import check_services, check_verifiers, start_verifiers
from rlhf_runtime.preflight.service_probe import probe_services
from rlhf_runtime.python_path import NO_CODE, PythonPath
from rlhf_runtime.telemetry.trackers import require_installed

Graphs = Mapping[GraphName, Graph]


def check_job(
    job: RLHFJob,
    graphs: Graphs | None,
    limits: Limits,
    findings: Findings,
    *,
    one_machine: bool,
    has_code: bool = True,
    python_path: PythonPath = NO_CODE,
) -> None:
    """Check a job's models, data, verifiers, storage and trackers.

    Args:
        job: the manifest.
        graphs: of the job. None: not available; then only checks common to all jobs run.
        limits: of the checks.
        findings: collects errors.
        one_machine: True if workers see the files of this machine.
        has_code: True if the user's code is on the path; verifiers are not checked without it.
        python_path: the user's code and its packages.
    """
    spec = job.spec
    policy, models, data = _uses(spec, graphs)
    # A verifier may read variables when it is imported: an import without them proves nothing.
    imports = has_code and (one_machine or not _has_other_variables(job))
    if has_code and not imports:
        findings.unchecked.append(
            "verifiers and environments: pods of node pools have variables of their own"
        )
    rewards = spec if imports else spec.model_copy(update={"rewards": ()})
    if spec.rollout.environment is not None:
        data = replace(
            data,
            environment=_environments(spec, imports, limits, one_machine, findings, python_path),
        )
    # Verifiers import while models and data are checked.
    with (
        start_verifiers(rewards, limits.verifier_seconds, one_machine) as started,
        tempfile.TemporaryDirectory() as workdir,
    ):
        folders = check_models(spec, models, Path(workdir), one_machine, findings)
        rows = check_data(
            spec, data, folders.get(policy), limits.rows_seconds, findings, one_machine
        )
        check_reward_tokenizers(spec, folders, findings)
        services = check_services(spec, one_machine, findings)
        if one_machine:
            check_records(spec, findings)
        verifiers = check_verifiers(spec, started, one_machine, findings) if imports else []
        if limits.tries_rewards:
            try_rewards(spec, verifiers, services, rows, one_machine, findings)
        elif not findings.gathered.errors:
            # No error: a service may start later than the job.
            found = probe_services(services, rows)
            (findings.warnings if one_machine else findings.unchecked).extend(found)
        if limits.tries_rewards and data.environment is not None and not findings.gathered.errors:
            tokenizer = TextTokenizer(folders[policy], spec.rollout.end_tokens)
            environment = data.environment
            try_environments(spec, environment, tokenizer, rows, one_machine, findings, python_path)


def _environments(
    spec: RLHFJobSpec,
    imports: bool,
    limits: Limits,
    one_machine: bool,
    findings: Findings,
    python_path: PythonPath,
) -> EnvironmentDescription | None:
    """Return the environments of a job, checked; None if they are not known here."""
    description = None
    if imports:
        seconds = limits.verifier_seconds
        description = check_environments(spec, seconds, one_machine, findings, python_path)
    if description is None:
        findings.unchecked.append("prompts with the schemas of tools: the tools are not known here")
    return description


def _has_other_variables(job: RLHFJob) -> bool:
    """True if verifiers may see environment variables in pods that are not set here."""
    return any(pool.env for pool in job.spec.resources.node_pools)


def _uses(spec: RLHFJobSpec, graphs: Graphs | None) -> tuple[str, ModelUse, DataUse]:
    """The policy, and the job's use of models and data."""
    if graphs is None:
        # The tokenizer of the policy reads the data; only graphs tell its role for certain.
        names = list(spec.manifest_models)
        return ("actor" if "actor" in names else names[0]), ModelUse(names, ()), PROMPTS_ONLY
    roles = {name: role for name, role in job_roles(graphs).items() if role.head is not None}
    generating = [name for name, role in roles.items() if role.generates]
    heads = {
        name: RequiredHead(is_scalar=role.head is ModelHead.SCALAR, must_exist=_keeps_head(role))
        for name, role in roles.items()
    }
    inputs = {name: graph.inputs for name, graph in graphs.items()}
    return (
        policy_role(graphs[GraphName.STEP]),
        ModelUse(roles, generating, heads),
        DataUse.from_graphs(inputs, any(role.is_trained for role in roles.values())),
    )


def _keeps_head(role: JobRole) -> bool:
    """True if the scalar head of a role must exist in its source: nothing changes it."""
    is_changed = role.is_trained or role.takes_weights
    return role.head is ModelHead.SCALAR and not is_changed


def check_records(spec: RLHFJobSpec, findings: Findings) -> None:
    """Check the address of checkpoints, without access to it, and the libraries of trackers.

    Args:
        spec: of a job that runs on this machine.
        findings: collects errors.
    """
    storage = spec.checkpoint.storage
    if storage is not None and storage.uri is not None:
        with findings.about("spec", "checkpoint", "storage", "uri"):
            require_persistent(storage.uri)
    with findings.about("spec", "telemetry"):
        require_installed(spec.telemetry)
