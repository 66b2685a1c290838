"""Checks the models of a job whose folders are on this machine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from rlhf_api.errors import RlhfError
from rlhf_api.problems import FieldPath
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.models import ModelSource
from rlhf_runtime.engines.heads import check_head
from rlhf_runtime.models.context import require_context
from rlhf_runtime.models.folder import CONFIG_FILE, missing_files, read_object, require_complete
from rlhf_runtime.models.sources import resolve_model
from rlhf_runtime.models.vocabulary import check_vocabularies
from rlhf_runtime.models.weights import check_weights
from rlhf_runtime.preflight.findings import Findings
from rlhf_sizing.config import cached_folder, hub_cache


@dataclass(frozen=True)
class RequiredHead:
    """The head that a role needs of its model."""

    is_scalar: bool
    """True: a number per token. False: logits."""
    must_exist: bool
    """True: the folder must contain the scalar head. A trained head may start at zero."""


@dataclass(frozen=True)
class ModelUse:
    """The use of models by a job."""

    roles: Collection[str]
    """Roles with a model."""
    generating: Collection[str]
    """Roles that generate."""
    heads: Mapping[str, RequiredHead] = field(default_factory=dict)
    """Required heads, by role; incomplete without graphs."""


def check_models(
    spec: RLHFJobSpec, use: ModelUse, workdir: Path, one_machine: bool, findings: Findings
) -> Mapping[str, Path]:
    """Check the folder of every model.

    Args:
        spec: of the job.
        use: of its models.
        workdir: where builtin models are written.
        one_machine: True if workers see the folders of this machine.
        findings: collects errors, and models that are not on this machine.

    Returns:
        The complete folders, by role.
    """
    origins = {role: spec.origin_role(role) for role in use.roles}
    fields = {origin: _field_of(spec, origin) for origin in origins.values()}
    resolved: dict[str, Path] = {}
    # Roles with weights of the same origin share a folder.
    for origin in dict.fromkeys(origins.values()):
        model = spec.model_for(origin)
        with findings.about(*fields[origin]):
            # Without a shape in the manifest the planner reads the config on this machine.
            if reason := _reason_unchecked(model.source, one_machine or model.shape is None):
                findings.unchecked.append(f"the model of {origin}: {reason}")
            else:
                resolved[origin] = _folder(model.source, spec.schedule.seed, workdir)
    folders = {role: resolved[origin] for role, origin in origins.items() if origin in resolved}
    with findings.about("spec", "models"):
        check_vocabularies(folders, spec.reward_models)
    _check_heads(use.heads, folders, {role: fields[origins[role]] for role in folders}, findings)
    for role in sorted(folders.keys() & set(use.generating)):
        with findings.about("spec", "rollout"):
            require_context(role, read_object(folders[role] / CONFIG_FILE), spec.rollout)
    return folders


def _field_of(spec: RLHFJobSpec, role: str) -> FieldPath:
    """The field of the manifest that names a role's model."""
    entry = spec.manifest_models[role]
    source = entry.model.source
    kind = "path" if source.path is not None else "huggingFace"
    return "spec", *entry.location, "source", "builtin" if source.builtin else kind


def _check_heads(
    heads: Mapping[str, RequiredHead],
    folders: Mapping[str, Path],
    fields: Mapping[str, FieldPath],
    findings: Findings,
) -> None:
    """Check the contents of every folder, once per required head; report equal errors once."""
    first: dict[tuple[Path, RequiredHead], str] = {}
    for role, head in heads.items():
        if role in folders:
            first.setdefault((folders[role], head), role)
    # A damaged folder fails once for each kind of head that is required of it.
    reported: set[str] = set()
    for (folder, head), role in first.items():
        with findings.about(*fields[role]):
            try:
                _check_contents(folder, head)
            except RlhfError as error:
                if str(error) not in reported:
                    reported.add(str(error))
                    raise


def _check_contents(folder: Path, head: RequiredHead) -> None:
    """Check that a folder's weights fit its config and the head that a role needs.

    Raises:
        WrongHead: it has another head.
        ModelIncomplete, UnsupportedModel: see `check_weights`.
    """
    config = read_object(folder / CONFIG_FILE)
    labels = config.get("id2label")
    # `check_head` reads attributes of a config; a namespace has them without the import of
    # transformers, whose default is 2 labels.
    described = SimpleNamespace(
        architectures=config.get("architectures"),
        num_labels=len(labels) if isinstance(labels, dict) else config.get("num_labels", 2),
    )
    check_head(folder, described, value_head=head.is_scalar, needs_head=head.must_exist)
    check_weights(folder, config, has_language_head=not head.is_scalar)


def _folder(source: ModelSource, seed: int, workdir: Path) -> Path:
    """The folder of a model, complete."""
    # `resolve_model` would send a request to the hub even if the model is cached.
    cached = _cached(source)
    if cached is None:
        return resolve_model(source, seed, workdir)
    require_complete(cached, f"the model {source.hugging_face}, as the local cache has it,")
    return cached


def _reason_unchecked(source: ModelSource, is_here: bool) -> str:
    """The reason to leave a model to workers; empty: check it here.

    Args:
        source: of the model.
        is_here: True if the folder must be on this machine.

    Raises:
        ModelIncomplete: the local cache has a damaged copy.
    """
    if source.hugging_face is not None:
        cached = _cached(source)
        # Offline a missing model is an error: workers cannot download it either.
        if _is_offline() or (cached is not None and not missing_files(cached)):
            return ""
        return f"workers download {source.hugging_face} when they start"
    if source.path is None or is_here or os.path.exists(os.path.expanduser(source.path)):
        return ""
    return f"{source.path} is not on this machine"


def _cached(source: ModelSource) -> Path | None:
    """The folder of a hub model in the local cache. None: no hub model, or not cached."""
    if source.hugging_face is None:
        return None
    cache = hub_cache(os.environ, Path.home())
    return cached_folder(cache, source.hugging_face, source.revision or "main")


def _is_offline() -> bool:
    """True if requests to the hub are disabled. Source: huggingface_hub, environment variables."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
