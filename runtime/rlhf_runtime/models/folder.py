"""A model folder in Hugging Face format: what belongs to it, and what its config says."""

from __future__ import annotations

import json
import operator
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.unreadable import unreadable_as

CONFIG_FILE = "config.json"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
METADATA = "__metadata__"
MAX_HEADER_BYTES = 100_000_000
"""Of a safetensors file. Source: safetensors, MAX_HEADER_SIZE."""
_NO_HEADER = (ValueError, RecursionError, TypeError, LookupError, AttributeError)
"""What reading something else as a header raises."""
WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_os_errors = partial(unreadable_as, ModelIncomplete, "a part of a model")
"""What the system says of a file or folder, as an error of the model."""


def require_complete(folder: Path, title: str) -> None:
    """Check that a folder holds a config and all its weights, whole as far as their beginnings say.

    title: what the message calls the model.

    Raises:
        ModelIncomplete: names every file that is missing, or the first that is damaged or that
            the system does not let be read.
    """
    missing = missing_files(folder)
    if missing:
        with _os_errors(folder):
            present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
        raise ModelIncomplete(
            f"{title} is not a complete model: got {folder} with {present}, missing "
            f"{', '.join(missing)}; copy the whole folder, or save the model again with "
            "save_pretrained"
        )
    read_object(folder / CONFIG_FILE)
    _require_whole(folder)


def _require_whole(folder: Path) -> None:
    """Check that safetensors files are as long as their headers say, and hold what the index
    names."""
    index = folder / WEIGHT_INDEXES[0]
    single = folder / WEIGHT_FILES[0]
    if index.is_file():
        named: dict[str, set[str]] = {}
        for tensor, file in _weight_map(index).items():
            named.setdefault(file, set()).add(tensor)
        for file, tensors in named.items():
            if lacking := sorted(tensors - tensors_of(folder / file).keys()):
                raise ModelIncomplete(
                    f"a file of weights lacks tensors that {index.name} names: got "
                    f"{folder / file} without {lacking[0]}"
                    + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
                    + "; copy the folder again"
                )
    elif single.is_file():
        tensors_of(single)


def _weight_map(index: Path) -> dict[str, str]:
    """The files of tensors, by the tensors' names.

    Raises:
        ModelIncomplete: the index does not name them.
    """
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict):
        raise ModelIncomplete(f"an index without weight_map: got {index}; copy it again")
    for tensor, file in names.items():
        if not isinstance(file, str):
            raise ModelIncomplete(
                f"an index that names no file of a tensor: got {file!r} for {tensor} in {index}; "
                "copy it again"
            )
    return names


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a whole model's safetensors files, by their names; empty without
    such files. Raises ModelIncomplete, as `tensors_of`."""
    index, single = folder / WEIGHT_INDEXES[0], folder / WEIGHT_FILES[0]
    if index.is_file():
        files = dict.fromkeys(_weight_map(index).values())
        return {name: size for file in files for name, size in tensors_of(folder / file).items()}
    return tensors_of(single) if single.is_file() else {}


def tensors_of(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file by their names, as its header has them.

    Raises:
        ModelIncomplete: it is none, or shorter than its header says, or cannot be read.
    """
    with _os_errors(file), file.open("rb") as stream:
        size = file.stat().st_size
        begin = stream.read(8)
        length = int.from_bytes(begin, "little")
        has_header = len(begin) == 8 and length <= min(size, MAX_HEADER_BYTES)
        header = stream.read(length) if has_header else b""
    try:
        entries = json.loads(header)
        tensors = {name: entry for name, entry in entries.items() if name != METADATA}
        ends = [operator.index(entry["data_offsets"][1]) for entry in tensors.values()]
        shapes = {name: tuple(map(int, each["shape"])) for name, each in tensors.items()}
    except _NO_HEADER as error:
        is_pointer = begin == b"version "
        do = "run `git lfs pull` there" if is_pointer else "copy it again"
        what = "a pointer of Git LFS" if is_pointer else f"{size} bytes"
        raise ModelIncomplete(f"not a safetensors file: got {file}, {what}; {do}") from error
    if (whole := 8 + length + max(ends, default=0)) > size:
        raise ModelIncomplete(
            f"a file of weights is cut off: got {file} with {size} bytes, allowed the {whole} of "
            "its header; copy it again"
        )
    return shapes


def missing_files(folder: Path) -> list[str]:
    """Names of the files that a model needs and the folder lacks.

    Raises:
        ModelIncomplete: the folder, or its index of weights, cannot be read.
    """
    with _os_errors(folder):
        missing = [] if (folder / CONFIG_FILE).is_file() else [CONFIG_FILE]
        index = next((name for name in WEIGHT_INDEXES if (folder / name).is_file()), None)
        if index is not None:
            shards = set(_weight_map(folder / index).values())
            return missing + sorted(shard for shard in shards if not (folder / shard).is_file())
        if not any((folder / name).is_file() for name in WEIGHT_FILES):
            missing.append(f"weights ({' or '.join(WEIGHT_FILES)}, whole or in shards)")
        return missing


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelIncomplete: no such file, or something else in it, or it cannot be read.
    """
    with _os_errors(file):
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ModelIncomplete(
                f"a model without {file.name}: got {file.parent}; copy the whole folder"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ModelIncomplete(f"not valid JSON: got {file}: {error}; copy it again") from error
    if not isinstance(value, dict):
        raise ModelIncomplete(f"not a JSON object: got {file}; copy it again")
    return value
