"""From a folder in Hugging Face format into a stage's own storage: a rank reads its own parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rlhf_runtime.engines.heads import SCORE, without_head
from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.family import OUTPUT
from rlhf_runtime.engines.model_files import INDEX, WEIGHTS
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import read_object
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import Views

NO_WEIGHT = ".rotary_emb.inv_freq"
"""What older files name so is computed from the config."""
HEAD = OUTPUT.weights[0].name
"""A model's head, whichever it is; in files a classifier's is called otherwise."""


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
            self._heads = {HEAD: SCORE} if SCORE in self._files else {}
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> WeightFiles:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The full shape of everything in the files, by name; that of a head is `HEAD`."""
        shapes = {
            name: tuple(opened.get_slice(name).get_shape()) for name, opened in self._files.items()
        }
        return shapes | {name: shapes.pop(saved) for name, saved in self._heads.items()}

    def read(self, name: str, box: TensorSlice) -> torch.Tensor:
        """A part of a weight, in the file's dtype, on the CPU."""
        whole = TensorSlice((0,) * len(box.start), box.stop)
        saved = self._heads.get(name, name)
        part: torch.Tensor = self._files[saved].get_slice(saved)[box.slices_in(whole)]
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
def load_model(
    views: Views, architecture: Architecture, folder: Path, *, from_classifier: bool = False
) -> None:
    """Fill a rank's views from a folder; nothing else is read. A scalar head that the folder does
    not have is left as it is.

    Args:
        views: of all weights that this rank has.
        architecture: of the model.
        folder: in Hugging Face format.
        from_classifier: whether it has a sequence classifier.

    Raises:
        ModelIncomplete: the files lack a weight of the model (of any rank).
        WrongHead: those of a classifier lack its head.
        UnsupportedModel: they have one that the model does not, or of another shape.
    """
    with WeightFiles(folder) as files:
        found = files.shapes()
        if from_classifier and HEAD not in found:
            raise without_head(folder, SCORE)
        check_names(architecture, found, folder)
        for name, parts in views.items():
            if architecture.has_scalar_head and name == HEAD and not from_classifier:
                continue
            for tensor, box in parts:
                tensor.copy_(files.read(name, box))


@torch.no_grad()
def overwrite_weights(views: Views, architecture: Architecture, folder: Path) -> None:
    """Fill a rank's views of all weights that a folder has in the same shape.

    Raises:
        ModelIncomplete: it has no weights in the safetensors format.
    """
    with WeightFiles(folder) as files:
        found, wanted = files.shapes(), architecture.shapes()
        for name, parts in views.items():
            if found.get(name) == wanted[name]:
                for tensor, box in parts:
                    tensor.copy_(files.read(name, box))


def check_names(
    architecture: Architecture, found: Mapping[str, tuple[int, ...]], folder: Path
) -> None:
    """Compare what files hold with what a model consists of, but for a scalar head that they lack
    or have another head than; errors as of `load_model`."""
    wanted = architecture.shapes()
    given = {name for name in found if not name.endswith(NO_WEIGHT)}
    if architecture.is_tied:
        given.discard(HEAD)  # some files hold the embedding twice
    if architecture.has_scalar_head and found.get(HEAD) != wanted[HEAD]:
        given.discard(HEAD)
        del wanted[HEAD]
    if missing := sorted(wanted.keys() - found.keys()):
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {_some(missing)}; copy the "
            "whole folder, or save the model again with save_pretrained"
        )
    if unknown := sorted(given - wanted.keys()):
        raise UnsupportedModel(
            f"weights that Megatron's layers do not have: got {_some(unknown)} in {folder}; train "
            "the model with the engine FSDP, or complete its family "
            "(docs/guides/add-a-model-family.md)"
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
