"""The shape of a role's model: from the manifest, the tables, or a config.json on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import ModelShape
from rlhf_flow.errors import ManifestOutdated, NoScores, ShapeUnknown
from rlhf_flow.planning.known_models import BUILTIN_MODELS, KNOWN_MODELS
from rlhf_flow.planning.model_config import cached_folder, read_shape, require_classifier
from rlhf_flow.planning.shapes import DecoderShape


def check_shapes(job: RLHFJob, cache: Path) -> None:
    """Compare the shapes that a manifest gives with what is known of the models here.

    Args:
        job: the manifest.
        cache: the hub cache of this machine.

    Raises:
        ManifestOutdated: one differs from its model's config.json, or from the tables.
    """
    for role, given in job.spec.manifest_models.items():
        shape = given.model.shape
        if shape is None:
            continue
        try:
            known = source_shape(job, role, cache).to_spec()
        except (ShapeUnknown, NoScores):  # the reason for a shape by hand, or told by other checks
            continue
        different = difference_of(shape, known)
        if different is not None:
            name, value, actual = different
            raise ManifestOutdated(
                f"the shape in the manifest is not that of the model: got {name} {value}, allowed "
                f"{actual}, as the model says; run `rlhf fill FILE`, which brings it up to date, "
                f"or remove spec.{given.field}.shape"
            ).at("spec", *given.location, "shape", name)


def difference_of(given: ModelShape, known: ModelShape) -> tuple[str, Any, Any] | None:
    """The first field in which a shape is not the known one, with both values; a family that is not
    given is any."""
    ours, theirs = (each.model_dump(mode="json", by_alias=True) for each in (given, known))
    if given.family is None:
        del ours["family"]
    return next(
        ((name, value, theirs[name]) for name, value in ours.items() if value != theirs[name]), None
    )


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
    named = job.spec.origin_role(role)
    given = job.spec.model_for(role).shape or job.spec.model_for(named).shape
    return DecoderShape.from_spec(given) if given is not None else source_shape(job, role, cache)


def source_shape(job: RLHFJob, role: str, cache: Path) -> DecoderShape:
    """The shape that the source of a role's model has, whatever the manifest says of it; arguments
    and errors as above."""
    named = job.spec.origin_role(role)
    source = job.spec.model_for(named).source
    field = job.spec.manifest_models[named].field
    advice = (
        f"let `rlhf fill FILE` write spec.{field}.shape where the model is, or give numLayers, "
        "hiddenSize and so on there (see `rlhf explain spec.models.shape`)"
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
        ).at("spec", *job.spec.manifest_models[named].location, "source", "huggingFace")
    return KNOWN_MODELS[source.hugging_face]


def _read(job: RLHFJob, role: str, folder: Path, advice: str) -> DecoderShape:
    if role in job.spec.reward_models:
        require_classifier(folder, advice)
    return read_shape(folder, advice)
