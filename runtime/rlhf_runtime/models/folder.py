"""A model folder in Hugging Face format: what belongs to it, and what its config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_runtime.models.errors import ModelIncomplete

CONFIG_FILE = "config.json"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def require_complete(folder: Path, title: str) -> None:
    """Check that a folder holds a config and all its weights.

    title: what the message calls the model.

    Raises:
        ModelIncomplete: names every file that is missing.
    """
    missing = missing_files(folder)
    if missing:
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
        raise ModelIncomplete(
            f"{title} is not a complete model: got {folder} with {present}, missing "
            f"{', '.join(missing)}; copy the whole folder, or save the model again with "
            "save_pretrained"
        )


def missing_files(folder: Path) -> list[str]:
    """Names of the files that a model needs and the folder lacks."""
    missing = [] if (folder / CONFIG_FILE).is_file() else [CONFIG_FILE]
    index = next((name for name in WEIGHT_INDEXES if (folder / name).is_file()), None)
    if index is not None:
        shards = set(read_object(folder / index)["weight_map"].values())
        return missing + sorted(shard for shard in shards if not (folder / shard).is_file())
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        missing.append(f"weights ({' or '.join(WEIGHT_FILES)}, whole or in shards)")
    return missing


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelIncomplete: no such file, or something else in it.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelIncomplete(
            f"a model without {file.name}: got {file.parent}; copy the whole folder"
        ) from error
    except ValueError as error:
        raise ModelIncomplete(f"not valid JSON: got {file}: {error}; copy it again") from error
    if not isinstance(value, dict):
        raise ModelIncomplete(f"not a JSON object: got {file}; copy it again")
    return value
