"""The shape of a role's model: from the manifest, the tables, or a config.json on this machine."""

from __future__ import annotations

from pathlib import Path

from rlhf_api import RLHFJob
from rlhf_flow.errors import ShapeUnknown
from rlhf_flow.planning.known_models import BUILTIN_MODELS, KNOWN_MODELS
from rlhf_flow.planning.model_config import cached_folder, read_shape, require_classifier
from rlhf_flow.planning.shapes import DecoderShape


def resolve_shape(job: RLHFJob, role: str, cache: Path) -> DecoderShape:
    """The shape of a role's model.

    The manifest's own `shape` wins; then built-in models, a local folder, the hub cache, the table
    of well-known models.

    Args:
        job: the job.
        role: one of its roles; a role that the manifest leaves out has the actor's model.
        cache: the hub cache of this machine.

    Raises:
        ShapeUnknown: none of these knows the model.
        NoScores: a reward's model is no reward model.
    """
    named = job.spec.origin_of(role)
    given = job.spec.model_for(role).shape or job.spec.model_for(named).shape
    if given is not None:
        return DecoderShape.from_spec(given)
    source = job.spec.model_for(named).source
    field = job.spec.given_models[named].field
    advice = (
        f"give numLayers, hiddenSize and so on as spec.{field}.shape "
        "(see `rlhf explain spec.models.shape`)"
    )
    if source.builtin is not None:
        return BUILTIN_MODELS[source.builtin]
    if source.path is not None:
        advice = f"correct the path, or, if only the workers can see it, {advice}"
        return _read(job, named, Path(source.path), advice)
    assert source.hugging_face is not None, "a role has exactly one source"
    folder = cached_folder(cache, source.hugging_face, source.revision or "main")
    if folder is not None:
        return _read(job, named, folder, advice)
    if source.hugging_face not in KNOWN_MODELS:
        name = source.hugging_face
        if name.startswith((".", "/", "~")):
            advice = f"if a folder was meant, write source: {{path: {name}}}; else {advice}"
        raise ShapeUnknown(
            f"the dimensions of {name} are not known: got an id that is neither in the table of "
            f"well-known models nor in the local hub cache {cache}; download it first, or {advice}"
        ).at("spec", *job.spec.given_models[named].location, "source", "huggingFace")
    return KNOWN_MODELS[source.hugging_face]


def _read(job: RLHFJob, role: str, folder: Path, advice: str) -> DecoderShape:
    if role in job.spec.reward_models:
        require_classifier(folder, advice)
    return read_shape(folder, advice)
