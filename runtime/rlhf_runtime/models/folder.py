"""Model folders in Hugging Face format: completeness, tensor shapes, JSON files, tokenizers."""

from __future__ import annotations

import json
import operator
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.unreadable_files import unreadable_as

CONFIG_FILE = "config.json"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
METADATA = "__metadata__"
MAX_HEADER_BYTES = 100_000_000
"""Longest header of a safetensors file. Source: safetensors, MAX_HEADER_SIZE."""
UNQUANTIZE = (
    "GGUF files are quantized for inference: take the model's original in Hugging Face format, or "
    "load the file by transformers (gguf_file=), copy the weights into a new model and save that"
)
"""Advice for a model that is a GGUF file."""
_HEADER_ERRORS = (ValueError, RecursionError, TypeError, LookupError, AttributeError)
"""Exceptions from parsing bytes that are no header."""
WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5"})
MODEL_FILES = frozenset({CONFIG_FILE, *WEIGHT_INDEXES})
_os_errors = partial(unreadable_as, ModelIncomplete, "a part of a model")
"""Converts errors of the operating system to errors of the model."""


def require_complete(folder: Path, title: str) -> None:
    """Check that a folder has a config and all its weights, by the headers of their files.

    title: name of the model in messages.

    Raises:
        ModelIncomplete: names every missing file, or the first damaged or unreadable one.
    """
    missing = missing_files(folder)
    if missing:
        # A few names only: a wrong path may be a large folder.
        with _os_errors(folder):
            present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
        do = "copy the complete folder, or save the model again with save_pretrained"
        if any(name.endswith(".gguf") for name in present.split(", ")):
            do = UNQUANTIZE
        raise ModelIncomplete(
            f"{title} is not a complete model: got {folder} with {present}, missing "
            f"{', '.join(missing)}; {do}"
        )
    read_object(folder / CONFIG_FILE)
    _check_weight_files(folder)


def _check_weight_files(folder: Path) -> None:
    """Check the lengths of safetensors files by their headers, and their tensors by the index."""
    index = folder / WEIGHT_INDEXES[0]
    single = folder / WEIGHT_FILES[0]
    if index.is_file():
        named: dict[str, set[str]] = {}
        for tensor, file in _weight_map(index).items():
            named.setdefault(file, set()).add(tensor)
        for file, tensors in named.items():
            if lacking := sorted(tensors - file_shapes(folder / file).keys()):
                raise ModelIncomplete(
                    f"a file of weights lacks tensors that {index.name} names: got "
                    f"{folder / file} without {lacking[0]}"
                    + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
                    + "; copy the folder again"
                )
    elif single.is_file():
        file_shapes(single)


def _weight_map(index: Path) -> dict[str, str]:
    """File names by tensor name.

    Raises:
        ModelIncomplete: the index does not name a file for every tensor.
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


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in a model's safetensors files, by name; empty without such files.

    Raises ModelIncomplete, as `file_shapes`.
    """
    index, single = folder / WEIGHT_INDEXES[0], folder / WEIGHT_FILES[0]
    if index.is_file():
        files = dict.fromkeys(_weight_map(index).values())
        return {name: size for file in files for name, size in file_shapes(folder / file).items()}
    return file_shapes(single) if single.is_file() else {}


def file_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a safetensors file, by name, from its header.

    Raises:
        ModelIncomplete: another kind of file, a truncated or an unreadable one.
    """
    with _os_errors(file), file.open("rb") as stream:
        size = file.stat().st_size
        begin = stream.read(8)
        length = int.from_bytes(begin, "little")
        # Other files give any number here: do not read gigabytes as a header.
        has_header = len(begin) == 8 and length <= min(size, MAX_HEADER_BYTES)
        header = stream.read(length) if has_header else b""
    try:
        entries = json.loads(header)
        tensors = {name: entry for name, entry in entries.items() if name != METADATA}
        ends = [operator.index(entry["data_offsets"][1]) for entry in tensors.values()]
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in tensors.items()}
    except _HEADER_ERRORS as error:
        # A clone without Git LFS has small text files in the place of weights.
        is_pointer = begin == b"version "
        do = "run `git lfs pull` there" if is_pointer else "copy it again"
        what = "a pointer of Git LFS" if is_pointer else f"{size} bytes"
        raise ModelIncomplete(f"not a safetensors file: got {file}, {what}; {do}") from error
    if (expected := 8 + length + max(ends, default=0)) > size:
        raise ModelIncomplete(
            f"a file of weights is cut off: got {file} with {size} bytes, allowed the {expected} "
            "of its header; copy it again"
        )
    return shapes


def missing_files(folder: Path) -> list[str]:
    """Names of required files that the folder lacks.

    Raises:
        ModelIncomplete: the folder, or its index of weights, cannot be read.
    """
    with _os_errors(folder):
        missing = [] if (folder / CONFIG_FILE).is_file() else [CONFIG_FILE]
        index = next((name for name in WEIGHT_INDEXES if (folder / name).is_file()), None)
        if index is not None:  # then only its shards count, whatever else lies there
            shards = set(_weight_map(folder / index).values())
            return missing + sorted(shard for shard in shards if not (folder / shard).is_file())
        if not any((folder / name).is_file() for name in WEIGHT_FILES):
            missing.append(f"weights ({' or '.join(WEIGHT_FILES)}, in one file or in shards)")
        return missing


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelIncomplete: no such file, an unreadable one, or other contents.
    """
    with _os_errors(file):
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ModelIncomplete(
                f"a model without {file.name}: got {file.parent}; copy the complete folder"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ModelIncomplete(f"not valid JSON: got {file}: {error}; copy it again") from error
    if not isinstance(value, dict):
        raise ModelIncomplete(f"not a JSON object: got {file}; copy it again")
    return value


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy everything but weights and their configuration: tokenizer, chat template, licence.

    Files that exist in the target stay.
    """
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        is_model = file.name in MODEL_FILES or file.suffix in WEIGHT_SUFFIXES
        if file.is_file() and not is_model and not (target / file.name).exists():
            shutil.copyfile(file, target / file.name)
