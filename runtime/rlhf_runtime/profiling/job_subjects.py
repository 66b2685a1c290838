"""The models of a job whose layers are measured."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import ModelSource
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import JobRole, job_roles, trace_job
from rlhf_flow.jobs.registry import resolve_precision
from rlhf_planner.memory.roles import MICRO_BATCH_TOKENS
from rlhf_runtime.models.context import max_positions
from rlhf_runtime.models.errors import ModelNotFound
from rlhf_runtime.models.folder import CONFIG_FILE, read_object
from rlhf_runtime.models.tiny_llama import tiny_llama_folder
from rlhf_runtime.profiling.subjects import Subject, merged
from rlhf_sizing.config import cached_folder, hub_cache, read_shape

# Limit of sequences of a measured decoding step.
MAX_SEQUENCES = 256
# Positions of a model whose config has none.
POSITIONS = 2048


def job_subjects(job: RLHFJob, device: Device, workdir: Path) -> tuple[Subject, ...]:
    """Each role's model, in training and in generation; equal layers only once.

    Args:
        job: the manifest, with absolute paths.
        device: of the ranks.
        workdir: where builtin models are written.

    Raises:
        FlowError: an algorithm that cannot be traced.
        ModelNotFound: a model whose config.json is not on this machine.
        ShapeUnknown: a model of an unsupported kind.
    """
    roles = job_roles(trace_job(job, device))
    return merged(
        subject
        for name, role in roles.items()
        if role.head is not None
        for subject in _role_subjects(job, name, role, device, workdir)
    )


def _role_subjects(
    job: RLHFJob, name: str, role: JobRole, device: Device, workdir: Path
) -> list[Subject]:
    origin = job.spec.origin_role(name)
    folder = config_folder(job.spec.model_for(origin).source, job.spec.schedule.seed, workdir)
    training, rollout = job.spec.model_for(name).training, job.spec.rollout
    tokens = training.micro_batch_tokens or MICRO_BATCH_TOKENS[device]
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens

    def subject(tensor: int, *, computes: bool, generates: bool) -> Subject:
        return Subject(
            name=name,
            folder=folder,
            shape=read_shape(folder, "choose a model of one of these kinds"),
            precision=resolve_precision(training.precision, device),
            tensor=tensor,
            computes=computes,
            generates=generates,
            micro_batch_tokens=max(tokens, longest),
            max_sequences=min(rollout.max_concurrent_sequences, MAX_SEQUENCES),
            max_positions=max_positions(read_object(folder / CONFIG_FILE)) or POSITIONS,
        )

    subjects = [subject(training.parallelism.tensor or 1, computes=True, generates=False)]
    if role.generates:
        subjects.append(subject(rollout.parallelism.tensor or 1, computes=False, generates=True))
    return subjects


def config_folder(source: ModelSource, seed: int, workdir: Path) -> Path:
    """A folder with a model's config.json, with or without weights.

    Raises:
        ModelNotFound: it is not on this machine.
    """
    if source.builtin is not None:
        return tiny_llama_folder(seed, workdir)
    if source.path is not None:
        folder: Path | None = Path(source.path)
    else:
        assert source.hugging_face is not None, "the origin of a model has no sameAs"
        cache = hub_cache(os.environ, Path.home())
        folder = cached_folder(cache, source.hugging_face, source.revision or "main")
    if folder is None or not (folder / CONFIG_FILE).is_file():
        model = source.path or source.hugging_face
        raise ModelNotFound(
            f"layers are measured where the model's config is: got {model} without {CONFIG_FILE} "
            "on this machine, allowed a folder or a model in the local hub cache; no weights are "
            f"needed: `hf download {source.hugging_face or 'OWNER/NAME'} {CONFIG_FILE}`"
        )
    return folder
