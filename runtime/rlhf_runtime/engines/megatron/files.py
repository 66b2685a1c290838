"""Model files of Megatron's stages: reads a folder in Hugging Face format, and writes one.

Every rank reads only its own slices. On saving, the mesh's first rank gathers and writes file by
file, so that no rank ever has the full model in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rlhf_runtime.engines.heads import SCORE, missing_head_error
from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.family import OUTPUT
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.model_files import (
    FILE_BYTES,
    INDEX,
    WEIGHTS,
    Shapes,
    write_configs,
    write_weights,
)
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import read_object
from rlhf_runtime.reshard.execute import execute
from rlhf_runtime.reshard.gathering import gather_pieces
from rlhf_runtime.reshard.layout import Layout, Piece, Pieces
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views

COMPUTED_SUFFIX = ".rotary_emb.inv_freq"
"""Suffix of buffers in older files, which are computed from the config."""
HEAD = OUTPUT.weights[0].name
"""Name of a model's head here, of either kind; files of a classifier name it `SCORE`."""


class WeightFiles:
    """The weights of a folder, of which any slice can be read. A context manager."""

    def __init__(self, folder: Path) -> None:
        """Open the folder's files.

        Raises:
            ModelIncomplete: no files in the safetensors format, or one is missing.
        """
        self.folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        try:
            for opened in map(self._open, _list_files(folder)):
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
        """The full shape of every tensor in the files, by name; the name of a head is `HEAD`."""
        shapes = {
            name: tuple(opened.get_slice(name).get_shape()) for name, opened in self._files.items()
        }
        return shapes | {name: shapes.pop(saved) for name, saved in self._heads.items()}

    def read(self, name: str, box: TensorSlice) -> torch.Tensor:
        """A slice of a weight, in the file's dtype, on the CPU."""
        outer = TensorSlice((0,) * len(box.start), box.stop)
        saved = self._heads.get(name, name)
        part: torch.Tensor = self._files[saved].get_slice(saved)[box.slices_in(outer)]
        return part

    def _open(self, file: Path) -> Any:
        if not file.is_file():
            raise ModelIncomplete(
                f"a model without all its weights: got {self.folder} without {file.name}; copy the "
                "complete folder"
            )
        return self._stack.enter_context(safe_open(file, framework="pt"))


def _list_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        names: Mapping[str, str] = read_object(folder / INDEX)["weight_map"]
        return [folder / name for name in sorted(set(names.values()))]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    present = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    raise ModelIncomplete(
        f"Megatron's ranks each read their part of a model, which needs safetensors files: got "
        f"{folder} with {present}, allowed {WEIGHTS} or {INDEX} with its files; save the model "
        "again with save_pretrained"
    )


@torch.no_grad()
def load_model(
    views: Views, architecture: Architecture, folder: Path, *, from_classifier: bool = False
) -> None:
    """Fill a rank's views from a folder; reads nothing else. Without a scalar head in the folder,
    that of the model stays.

    Args:
        views: of all weights of this rank.
        architecture: of the model.
        folder: in Hugging Face format.
        from_classifier: True if the folder has a sequence classifier.

    Raises:
        ModelIncomplete: the files lack a weight of the model (of any rank).
        WrongHead: a classifier's files lack its head.
        UnsupportedModel: an unknown weight, or one of another shape.
    """
    with WeightFiles(folder) as files:
        shapes = files.shapes()
        if from_classifier and HEAD not in shapes:
            raise missing_head_error(folder, SCORE)
        check_names(architecture, shapes, folder)
        for name, parts in views.items():
            # A language model's head has the same name, but another shape: the scalar one stays.
            if architecture.has_scalar_head and name == HEAD and not from_classifier:
                continue
            for tensor, box in parts:
                tensor.copy_(files.read(name, box))


@torch.no_grad()
def overwrite_from_folder(views: Views, architecture: Architecture, folder: Path) -> None:
    """Fill a rank's views of all weights that a folder has in the same shape.

    Raises:
        ModelIncomplete: the folder has no weights in the safetensors format.
    """
    with WeightFiles(folder) as files:
        file_shapes, expected = files.shapes(), architecture.shapes()
        for name, parts in views.items():
            if file_shapes.get(name) == expected[name]:
                for tensor, box in parts:
                    tensor.copy_(files.read(name, box))


def check_names(
    architecture: Architecture, file_shapes: Mapping[str, tuple[int, ...]], folder: Path
) -> None:
    """Compare the tensors in files with those of a model; errors as of `load_model`.

    For a model with a scalar head, files may have another head or none.
    """
    expected = architecture.shapes()
    names = {name for name in file_shapes if not name.endswith(COMPUTED_SUFFIX)}
    if architecture.is_tied:
        names.discard(HEAD)  # some files have the embedding twice
    if architecture.has_scalar_head and file_shapes.get(HEAD) != expected[HEAD]:
        names.discard(HEAD)
        del expected[HEAD]
    if missing := sorted(expected.keys() - file_shapes.keys()):
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {_first_names(missing)}; copy "
            "the complete folder, or save the model again with save_pretrained"
        )
    if unknown := sorted(names - expected.keys()):
        raise UnsupportedModel(
            f"weights that Megatron's layers do not have: got {_first_names(unknown)} in {folder}; "
            "train the model with the engine FSDP, or complete its family "
            "(docs/guides/add-a-model-family.md)"
        )
    for name in _differing_names(expected, file_shapes):
        raise UnsupportedModel(
            f"a weight of another shape than config.json says: got {file_shapes[name]} of {name} "
            f"in {folder}, allowed {expected[name]}; copy config.json and weights of one model"
        )


def _differing_names(
    expected: Mapping[str, tuple[int, ...]], actual: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    return (name for name, shape in expected.items() if actual[name] != shape)


def _first_names(names: Collection[str]) -> str:
    """The first three of several names, and the number of the others."""
    shown = ", ".join(list(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def save_model(
    stage: Stage, views: Views, folder: Path, dtype: torch.dtype, file_bytes: int = FILE_BYTES
) -> None:
    """Write the full model file by file. Collective over its mesh; the first rank writes.

    A model with a scalar head becomes a sequence classifier of one label, as reward models are.

    Args:
        stage: this rank's.
        views: this rank's part of its weights.
        folder: created if necessary. Files of the same names are overwritten.
        dtype: of the weights in the files.
        file_bytes: maximum bytes that the first rank has in memory beside its own weights.
    """
    is_first, is_scalar = stage.parallel.is_first, stage.architecture.has_scalar_head
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(stage.hf_config.name_or_path)
        write_configs(stage.hf_config, source, folder, dtype, is_scalar=is_scalar)
    pieces = gather_pieces(views, stage.parallel.group)
    write_weights(
        stage.architecture.shapes(),
        partial(_gather, views=views, pieces=pieces, stage=stage, dtype=dtype),
        folder,
        dtype,
        {HEAD: SCORE} if is_scalar else {},
        writes=is_first,
        file_bytes=file_bytes,
    )


def _gather(
    shapes: Shapes, views: Views, pieces: Sequence[Pieces], stage: Stage, dtype: torch.dtype
) -> Mapping[str, torch.Tensor]:
    """Gather some full weights on the mesh's first rank; nothing on the others."""
    parallel = stage.parallel
    source = Layout(
        shapes,
        tuple(
            tuple(piece for piece in rank_pieces if piece.name in shapes) for rank_pieces in pieces
        ),
    )
    full = tuple(Piece(name, TensorSlice.full(shape)) for name, shape in shapes.items())
    target = Layout(shapes, (full, *((),) * (parallel.size - 1)))
    weights = {}
    if parallel.is_first:
        weights = {name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}
    execute(
        plan_reshard(source, target),
        parallel.rank,
        views,
        {name: [View(tensor, TensorSlice.full(shapes[name]))] for name, tensor in weights.items()},
        parallel.group,
    )
    return weights
