"""The shape of a role's model: from the manifest, a table, or a config.json on this machine.

The tables hold dimensions and context windows of well-known models, so that jobs can be planned
offline. Parameter counts that follow from the dimensions are tested against the published ones.
Source: each model's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName
from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import BuiltinModel, ModelShape
from rlhf_flow.errors import ManifestOutdated, NoScores, ShapeUnknown
from rlhf_flow.trace.graph import Graph
from rlhf_sizing.config import cached_folder, read_shape, require_classifier
from rlhf_sizing.shape import DecoderShape


def _llama(layers: int, hidden: int, middle: int, heads: int, kv: int, dim: int) -> DecoderShape:
    return DecoderShape(layers, hidden, middle, heads, kv, dim, vocab_size=128256, family="llama")


def _qwen2(layers: int, hidden: int, middle: int, heads: int, kv: int, vocab: int) -> DecoderShape:
    dim = hidden // heads
    return DecoderShape(
        layers, hidden, middle, heads, kv, dim, vocab_size=vocab, qkv_bias=True, family="qwen2"
    )


def _qwen3(layers: int, hidden: int, middle: int, heads: int, kv: int = 8) -> DecoderShape:
    return DecoderShape(
        layers,
        hidden,
        middle,
        heads,
        kv,
        128,
        vocab_size=151936,
        query_key_norm=True,
        family="qwen3",
    )


def _gemma2(layers: int, hidden: int, middle: int, heads: int, kv: int, dim: int) -> DecoderShape:
    return DecoderShape(
        layers,
        hidden,
        middle,
        heads,
        kv,
        dim,
        vocab_size=256000,
        tied_embeddings=True,
        norms_per_layer=4,
        family="gemma2",
    )


def _tied(shape: DecoderShape) -> DecoderShape:
    return replace(shape, tied_embeddings=True)


_LLAMA_8B = _llama(32, 4096, 14336, 32, 8, 128)
_LLAMA_70B = _llama(80, 8192, 28672, 64, 8, 128)
_LLAMA_405B = _llama(126, 16384, 53248, 128, 8, 128)
_LLAMA_1B = _tied(_llama(16, 2048, 8192, 32, 8, 64))
_LLAMA_3B = _tied(_llama(28, 3072, 8192, 24, 8, 128))
_MISTRAL_7B = DecoderShape(32, 4096, 14336, 32, 8, 128, vocab_size=32000, family="mistral")
_MISTRAL_7B_V3 = replace(_MISTRAL_7B, vocab_size=32768)

_QWEN25 = {
    "0.5B": _tied(_qwen2(24, 896, 4864, 14, 2, 151936)),
    "1.5B": _tied(_qwen2(28, 1536, 8960, 12, 2, 151936)),
    "3B": _tied(_qwen2(36, 2048, 11008, 16, 2, 151936)),
    "7B": _qwen2(28, 3584, 18944, 28, 4, 152064),
    "14B": _qwen2(48, 5120, 13824, 40, 8, 152064),
    "32B": _qwen2(64, 5120, 27648, 40, 8, 152064),
    "72B": _qwen2(80, 8192, 29568, 64, 8, 152064),
}
_QWEN25_MATH = {
    "1.5B": _QWEN25["1.5B"],
    "7B": _QWEN25["7B"],
    "72B": _QWEN25["72B"],
}
_QWEN3 = {
    "0.6B": _tied(_qwen3(28, 1024, 3072, 16)),
    "1.7B": _tied(_qwen3(28, 2048, 6144, 16)),
    "4B": _tied(_qwen3(36, 2560, 9728, 32)),
    "8B": _qwen3(36, 4096, 12288, 32),
    "14B": _qwen3(40, 5120, 17408, 40),
    "32B": _qwen3(64, 5120, 25600, 64),
}
_GEMMA2 = {
    "2b": _gemma2(26, 2304, 9216, 8, 4, 256),
    "9b": _gemma2(42, 3584, 14336, 16, 8, 256),
    "27b": _gemma2(46, 4608, 36864, 32, 16, 128),
}
_GEMMA3_1B = DecoderShape(
    26,
    1152,
    6912,
    4,
    1,
    256,
    vocab_size=262144,
    tied_embeddings=True,
    query_key_norm=True,
    norms_per_layer=4,
    family="gemma3_text",
)

WELL_KNOWN_MODELS: Mapping[str, DecoderShape] = {
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "meta-llama/Llama-3.1-70B": _LLAMA_70B,
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.1-405B": _LLAMA_405B,
    "meta-llama/Llama-3.1-405B-Instruct": _LLAMA_405B,
    "meta-llama/Llama-3.2-1B": _LLAMA_1B,
    "meta-llama/Llama-3.2-1B-Instruct": _LLAMA_1B,
    "meta-llama/Llama-3.2-3B": _LLAMA_3B,
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA_3B,
    "mistralai/Mistral-7B-v0.1": _MISTRAL_7B,
    "mistralai/Mistral-7B-Instruct-v0.2": _MISTRAL_7B,
    "mistralai/Mistral-7B-v0.3": _MISTRAL_7B_V3,
    "mistralai/Mistral-7B-Instruct-v0.3": _MISTRAL_7B_V3,
    **{f"Qwen/Qwen2.5-{size}": shape for size, shape in _QWEN25.items()},
    **{f"Qwen/Qwen2.5-{size}-Instruct": shape for size, shape in _QWEN25.items()},
    **{f"Qwen/Qwen2.5-Math-{size}": shape for size, shape in _QWEN25_MATH.items()},
    **{f"Qwen/Qwen3-{size}": shape for size, shape in _QWEN3.items()},
    # There is no Qwen3-32B-Base.
    **{f"Qwen/Qwen3-{size}-Base": shape for size, shape in _QWEN3.items() if size != "32B"},
    **{f"google/gemma-2-{size}": shape for size, shape in _GEMMA2.items()},
    **{f"google/gemma-2-{size}-it": shape for size, shape in _GEMMA2.items()},
    "google/gemma-3-1b-pt": _GEMMA3_1B,
    "google/gemma-3-1b-it": _GEMMA3_1B,
}

BUILTIN_MODELS: Mapping[BuiltinModel, DecoderShape] = {
    BuiltinModel.TINY_LLAMA: DecoderShape(2, 128, 512, 4, 4, 32, vocab_size=64, family="llama"),
}


KIBI = 1024
# Context windows in tokens, by the beginning of a model's id; the first match counts. These are
# max_position_embeddings of config.json, the larger if versions differ.
BY_PREFIX: Mapping[str, int] = {
    "meta-llama/Llama-3.": 128 * KIBI,
    "mistralai/Mistral-7B-": 32 * KIBI,
    "Qwen/Qwen2.5-Math-": 4 * KIBI,
    "Qwen/Qwen2.5-": 128 * KIBI,
    "Qwen/Qwen3-": 40 * KIBI,
    "google/gemma-2-": 8 * KIBI,
    "google/gemma-3-1b-": 32 * KIBI,
}
# Context window of Qwen2.5 models whose id ends in Instruct.
QWEN25_INSTRUCT = 32 * KIBI


def context_tokens(model: str) -> int | None:
    """The context window of a model of the hub, by its id. None: unknown."""
    if model not in WELL_KNOWN_MODELS:
        return None
    if model.startswith("Qwen/Qwen2.5-") and model.endswith("-Instruct"):
        return QWEN25_INSTRUCT
    return next((limit for prefix, limit in BY_PREFIX.items() if model.startswith(prefix)), None)


def check_contexts(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> None:
    """Check that the models which generate accept the longest prompt with the longest response.

    Raises:
        ManifestError: one does not; vLLM would refuse to start.
    """
    # This refuses a job before it asks for a GPU. The context windows of other models are read from
    # config.json before a start.
    rollout = job.spec.rollout
    longest = rollout.required_context_tokens
    for role in dict.fromkeys(
        role for graph in graphs.values() for role in graph.roles_with(CallKind.GENERATE)
    ):
        model = job.spec.model_for(job.spec.origin_role(role)).source.hugging_face
        limit = None if model is None else context_tokens(model)
        if limit is not None and longest > limit:
            raise ManifestError(
                [
                    Problem(
                        ("spec", "rollout", "maxResponseTokens"),
                        f"prompt and response together are longer than the model of {role} takes",
                        got=f"{rollout.required_context} = {longest:,}",
                        allowed=f"{limit:,}, the context of {model}",
                        do=rollout.context_advice,
                    )
                ]
            )


def check_shapes(job: RLHFJob, cache: Path) -> None:
    """Compare the shapes in a manifest with those of the models.

    Args:
        job: the manifest.
        cache: the hub cache of this machine.

    Raises:
        ManifestOutdated: one differs from its model's config.json, or from the tables.
    """
    for role, model in job.spec.manifest_models.items():
        shape = model.model.shape
        if shape is None:
            continue
        try:
            actual_shape = source_shape(job, role, cache).to_spec()
        except (ShapeUnknown, NoScores):
            # An unknown model is why the manifest has a shape. Other checks report a model without
            # scores.
            continue
        different = difference_of(shape, actual_shape)
        if different is not None:
            name, value, actual = different
            raise ManifestOutdated(
                f"the shape in the manifest is not that of the model: got {name} {value}, allowed "
                f"{actual}, as the model says; run `rlhf fill FILE`, which brings it up to date, "
                f"or remove spec.{model.field}.shape"
            ).at("spec", *model.location, "shape", name)


def difference_of(
    manifest_shape: ModelShape, actual_shape: ModelShape
) -> tuple[str, Any, Any] | None:
    """The first field in which a shape differs from the actual one, with both values."""
    ours, theirs = (
        shape.model_dump(mode="json", by_alias=True) for shape in (manifest_shape, actual_shape)
    )
    # A manifest may leave the family out, which is then not compared.
    if manifest_shape.family is None:
        del ours["family"]
    return next(
        ((name, value, theirs[name]) for name, value in ours.items() if value != theirs[name]), None
    )


def resolve_shape(job: RLHFJob, role: str, cache: Path) -> DecoderShape:
    """The shape of a role's model.

    The order: the manifest's own `shape`, built-in models, a local folder, the hub cache, the table
    of well-known models.

    Args:
        role: a role of the job; one that the manifest leaves out has the actor's model.
        cache: the hub cache of this machine.

    Raises:
        ShapeUnknown: none of these has the model.
        NoScores: a reward's model is no reward model.
    """
    named = job.spec.origin_role(role)
    manifest_shape = job.spec.model_for(role).shape or job.spec.model_for(named).shape
    return (
        DecoderShape.from_spec(manifest_shape)
        if manifest_shape is not None
        else source_shape(job, role, cache)
    )


def source_shape(job: RLHFJob, role: str, cache: Path) -> DecoderShape:
    """The shape of the source of a role's model, whatever the manifest says; arguments and errors
    as for `resolve_shape`."""
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
        # Folders of a manifest may exist in the pods of workers only.
        advice = f"correct the path, or, if only the workers can see it, {advice}"
        return _read(job, named, Path(source.path), advice)
    assert source.hugging_face is not None, "a role has exactly one source"
    folder = cached_folder(cache, source.hugging_face, source.revision or "main")
    if folder is not None:
        return _read(job, named, folder, advice)
    if source.hugging_face not in WELL_KNOWN_MODELS:
        name = source.hugging_face
        # Ids of the hub have no such beginning: a folder was meant.
        if name.startswith((".", "/", "~")):
            advice = f"if a folder was meant, write source: {{path: {name}}}; else {advice}"
        raise ShapeUnknown(
            f"the dimensions of {name} are not known: got an id that is neither in the table of "
            f"well-known models nor in the local hub cache {cache}; download it first, or {advice}"
        ).at("spec", *job.spec.manifest_models[named].location, "source", "huggingFace")
    return WELL_KNOWN_MODELS[source.hugging_face]


def _read(job: RLHFJob, role: str, folder: Path, advice: str) -> DecoderShape:
    if role in job.spec.reward_models:
        require_classifier(folder, advice)
    return read_shape(folder, advice)
