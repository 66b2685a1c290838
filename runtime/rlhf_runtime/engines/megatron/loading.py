"""From a folder in Hugging Face format into a stage's own storage: a rank reads its own parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.family import OUTPUT
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import read_object
from rlhf_runtime.reshard.boxes import Box
from rlhf_runtime.reshard.views import Views

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NO_WEIGHT = ".rotary_emb.inv_freq"
"""What older files name so is computed from the config."""


class WeightFiles:
    """The weights of a folder, of which any part can be read. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Open the folder's files.

        Raises:
            ModelIncomplete: there are none in the safetensors format, or one is missing.
        """
        self.folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        try:
            for opened in map(self._open, _files(folder)):
                self._files |= dict.fromkeys(opened.keys(), opened)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The full shape of everything in the files, by name."""
        return {
            name: tuple(opened.get_slice(name).get_shape()) for name, opened in self._files.items()
        }

    def read(self, name: str, box: Box) -> torch.Tensor:
        """A part of a weight, in the file's dtype, on the CPU."""
        whole = Box((0,) * len(box.start), box.stop)
        part: torch.Tensor = self._files[name].get_slice(name)[box.slices_in(whole)]
        return part

    def _open(self, file: Path) -> Any:
        if not file.is_file():
            raise ModelIncomplete(
                f"a model without all its weights: got {self.folder} without {file.name}; copy the "
                "whole folder"
            )
        return self._stack.enter_context(safe_open(file, framework="pt"))


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        names: Mapping[str, str] = read_object(folder / INDEX)["weight_map"]
        return [folder / name for name in sorted(set(names.values()))]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    raise ModelIncomplete(
        f"Megatron's ranks each read their part of a model, which safetensors files allow: got "
        f"{folder} with {present}, allowed {WEIGHTS} or {INDEX} with its files; save the model "
        "again with save_pretrained"
    )


@torch.no_grad()
def load_weights(views: Views, architecture: Architecture, files: WeightFiles) -> None:
    """Fill a rank's views; nothing else is read.

    Raises:
        ModelIncomplete: the files lack a weight of the model (of any rank).
        UnsupportedModel: they have one that the model does not, or of another shape.
    """
    check_names(architecture, files.shapes(), files.folder)
    for name, parts in views.items():
        for tensor, box in parts:
            tensor.copy_(files.read(name, box))


def check_names(
    architecture: Architecture, found: Mapping[str, tuple[int, ...]], folder: Path
) -> None:
    """Compare what files hold with what a model consists of; errors as of `load_weights`."""
    wanted = architecture.shapes()
    if missing := sorted(wanted.keys() - found.keys()):
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {_some(missing)}; copy the "
            "whole folder, or save the model again with save_pretrained"
        )
    given = {name for name in found if not name.endswith(NO_WEIGHT)}
    if architecture.is_tied:
        given.discard(OUTPUT.weights[0].name)  # some files hold the embedding twice
    if unknown := sorted(given - wanted.keys()):
        raise UnsupportedModel(
            f"weights that Megatron's layers do not have: got {_some(unknown)} in {folder}; train "
            "the model with the engine FSDP2, or complete its family "
            "(docs/model-families.md)"
        )
    for name in _differing(wanted, found):
        raise UnsupportedModel(
            f"a weight of another shape than config.json says: got {found[name]} of {name} in "
            f"{folder}, allowed {wanted[name]}; copy config.json and weights of one model"
        )


def _differing(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    return (name for name, shape in wanted.items() if found[name] != shape)


def _some(names: Collection[str]) -> str:
    """The first of several names, and how many there are."""
    shown = ", ".join(list(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
