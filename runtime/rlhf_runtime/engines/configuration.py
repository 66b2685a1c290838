"""What a model's folder says of it, as transformers reads it."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig

from rlhf_runtime.errors import UnsupportedModel


def read_config(folder: Path) -> PreTrainedConfig:
    """A folder's configuration.

    Raises:
        UnsupportedModel: transformers knows no such kind of model, or not with these settings.
    """
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except ValueError as error:
        first, *_ = str(error).splitlines()
        raise UnsupportedModel(
            f"transformers cannot read the model: got {folder}: {first} Choose a model of a kind "
            "that it knows, or correct config.json"
        ) from error
    return config
