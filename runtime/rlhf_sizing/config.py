"""Shapes from a config.json in Hugging Face format: in a folder, or in the local hub cache.

Nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_flow.errors import NoScores, ShapeUnknown
from rlhf_sizing.shape import (
    MODEL_TYPES,
    QKV_BIAS,
    QUERY_KEY_NORM,
    TIED_BY_DEFAULT,
    DecoderShape,
    norms_per_layer,
)

CONFIG_FILE = "config.json"
# Limit of a model's parameters: a config.json with more is damaged.
MAX_PARAMETERS = 10**14
# Values of `model_type` with layers that rlhf_runtime maps to Megatron's.
MEGATRON_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def read_shape(folder: Path, advice: str) -> DecoderShape:
    """Read the shape of the model in a folder.

    Args:
        folder: with a config.json.
        advice: what to do instead, the end of every message.

    Raises:
        ShapeUnknown: no config.json, or one that does not describe a supported decoder.
    """
    return shape_from_config(_read(folder, advice), str(folder / CONFIG_FILE), advice)


def require_classifier(folder: Path, advice: str) -> None:
    """Refuse a reward model whose configuration says that it gives no scores.

    Args:
        folder: with a config.json.
        advice: what to do if it cannot be read.

    Raises:
        ShapeUnknown: no valid config.json.
        NoScores: a model with another head.
    """
    # A configuration without architectures says nothing, so it is not refused.
    named = _read(folder, advice).get("architectures") or ()
    if named and not any(str(name).endswith("ForSequenceClassification") for name in named):
        raise NoScores(
            f"a reward model that gives no scores: got {folder} with {', '.join(map(str, named))}, "
            "allowed a sequence classifier of one label; choose a reward model, or train one by an "
            "algorithm of type RewardModel"
        )


def _read(folder: Path, advice: str) -> Mapping[str, Any]:
    """Read a folder's configuration.

    Raises:
        ShapeUnknown: there is none.
    """
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ShapeUnknown(
            f"the model's dimensions cannot be read: got no readable {path} ({error.strerror}); "
            f"{advice}"
        ) from error
    except ValueError as error:
        raise ShapeUnknown(f"not a JSON file: got {path} ({error}); {advice}") from error
    if not isinstance(config, dict):
        raise ShapeUnknown(f"not a model's configuration: got {path}; {advice}")
    return config


def shape_from_config(config: Mapping[str, Any], origin: str, advice: str) -> DecoderShape:
    """The shape that a configuration describes.

    Raises:
        ShapeUnknown: an unsupported kind of model, or a missing or wrong dimension.
    """
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES:
        raise ShapeUnknown(
            f"a kind of model without known layers: got model_type {model_type!r} in {origin}, "
            f"allowed {', '.join(sorted(MODEL_TYPES))}; {advice}"
        )

    def dimension(name: str, default: int | None = None) -> int:
        value = config.get(name)
        if value is None and default is not None:
            return default
        # Python's booleans are integers, too.
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ShapeUnknown(
                f"a dimension is missing or wrong: got {name} {value!r} in {origin}, allowed a "
                f"number of at least 1; {advice}"
            )
        return value

    heads = dimension("num_attention_heads")
    hidden = dimension("hidden_size")
    tied = config.get("tie_word_embeddings")
    shape = DecoderShape(
        num_layers=dimension("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=dimension("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=dimension("num_key_value_heads", heads),
        head_dim=dimension("head_dim", hidden // heads),
        vocab_size=dimension("vocab_size"),
        tied_embeddings=bool(tied) if tied is not None else model_type in TIED_BY_DEFAULT,
        qkv_bias=model_type in QKV_BIAS,
        query_key_norm=model_type in QUERY_KEY_NORM,
        norms_per_layer=norms_per_layer(model_type),
        family=model_type,
    )
    if shape.num_parameters > MAX_PARAMETERS:
        raise ShapeUnknown(
            f"a model larger than there are: got {shape.num_parameters:,} parameters by {origin}, "
            f"allowed at most {MAX_PARAMETERS:,}; {advice}"
        )
    return shape


def cached_folder(cache: Path, model_id: str, revision: str) -> Path | None:
    """The folder of a downloaded model in a hub cache; None if it is not there."""
    repository = cache / f"models--{model_id.replace('/', '--')}"
    snapshots = repository / "snapshots"
    reference = repository / "refs" / revision
    # A branch or tag has a file with its commit; any other revision is a commit itself.
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    folder = snapshots / commit
    return folder if (folder / CONFIG_FILE).is_file() else None


def hub_cache(environment: Mapping[str, str], home: Path) -> Path:
    """The folder of huggingface_hub's downloads, by its own rules.

    Source: huggingface_hub, environment variables HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME.
    """
    if "HF_HUB_CACHE" in environment:
        return Path(environment["HF_HUB_CACHE"])
    if "HF_HOME" in environment:
        return Path(environment["HF_HOME"]) / "hub"
    base = environment["XDG_CACHE_HOME"] if "XDG_CACHE_HOME" in environment else home / ".cache"
    return Path(base) / "huggingface" / "hub"
