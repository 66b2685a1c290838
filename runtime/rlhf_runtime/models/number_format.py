"""The number format in which a trained model is saved."""

from __future__ import annotations

from pathlib import Path

from rlhf_api.spec.checkpoint import ModelFormat
from rlhf_runtime.models.folder import CONFIG_FILE, read_object


def saved_format(requested: ModelFormat, source: Path) -> ModelFormat:
    """Return float32 or bfloat16.

    Args:
        requested: by the manifest.
        source: folder of the model that training began with.

    Raises:
        ModelIncomplete: the source's config cannot be read.
    """
    if requested is not ModelFormat.SOURCE:
        return requested
    config = read_object(source / CONFIG_FILE)
    # transformers has renamed torch_dtype.
    stored = config.get("dtype", config.get("torch_dtype"))
    # Trained weights may exceed the range of float16.
    return ModelFormat.BFLOAT16 if stored == ModelFormat.BFLOAT16 else ModelFormat.FLOAT32
