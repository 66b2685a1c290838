"""Lists the models of a checkpoint and exports them in Hugging Face format.

Runs in one process, without a world of ranks, however the models were sharded when they were saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rlhf_runtime.checkpoint.saver import load_without_world, pool_addresses, saved_shapes
from rlhf_runtime.engines.heads import SCORE, make_scalar_config
from rlhf_runtime.engines.model_files import (
    FILE_BYTES,
    Shapes,
    meta_model,
    output_weight_name,
    read_config,
    write_configs,
    write_weights,
)
from rlhf_runtime.errors import CannotExport, UnsupportedModel
from rlhf_runtime.roles.saving import SAVED_ROLE

# Maximum of differing weights that a message lists.
SHOWN_WEIGHTS = 3


@dataclass(frozen=True)
class SavedModel:
    """The weights of a role in a checkpoint."""

    role: str
    address: str
    """Address of the checkpoint's part that holds it."""
    shapes: Shapes
    """Shapes of its full weights, by name."""
    is_trained: bool
    """True if it has an optimizer; else it only copied another role's weights."""

    def key(self, name: str) -> str:
        """Return the key of a weight in the checkpoint's part."""
        return f"{_weights_of(self.role)}{name}"


def saved_models(address: str) -> dict[str, SavedModel]:
    """List the models of a checkpoint by role, sorted by role.

    Raises:
        StorageFailed: the checkpoint cannot be read.
    """
    models = {}
    for part in pool_addresses(address):
        shapes = saved_shapes(part)
        for role in (match[1] for match in map(SAVED_ROLE.fullmatch, shapes) if match):
            prefix = _weights_of(role)
            own = {
                key.removeprefix(prefix): shape
                for key, shape in shapes.items()
                if key.startswith(prefix) and shape is not None
            }
            is_trained = f"roles.{role}.optimizer.updates" in shapes
            models[role] = SavedModel(role, part, own, is_trained)
    return dict(sorted(models.items()))


def export_model(
    model: SavedModel,
    source: Path,
    folder: Path,
    dtype: torch.dtype,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write config and weights, in the form that a run leaves its final model in.

    Memory: the weights of one file and one saved tensor slice.

    Args:
        model: of a checkpoint.
        source: the model folder that the role was trained from.
        folder: an existing folder to write to.
        dtype: of the weights in the files.
        file_bytes: size of a file of weights.

    Raises:
        CannotExport: the model was not trained from this source.
        UnsupportedModel: files name its weights in another way than the model does, or it has no
            class for its head.
        StorageFailed: the checkpoint cannot be read.
    """
    config = read_config(source)
    config.dtype = torch.float32
    head = output_weight_name(meta_model(config))
    # A scalar head has a single row.
    is_scalar = model.shapes.get(head, (0,))[0] == 1
    if is_scalar:
        make_scalar_config(config)
    expected = meta_model(config)
    shapes = {name: tuple(weight.shape) for name, weight in expected.named_parameters()}
    if is_scalar:
        shapes[head] = (1, *shapes[head][1:])
    _check_shapes(model, shapes, source)
    _check_names(expected, source)
    write_configs(config, source, folder, dtype, is_scalar=is_scalar)
    # Hugging Face's sequence classifiers name their scalar head `score`.
    names = {head: SCORE} if is_scalar else {}
    write_weights(shapes, partial(_read, model, dtype), folder, dtype, names, file_bytes=file_bytes)


def _weights_of(role: str) -> str:
    # As `state_of` saves them.
    return f"roles.{role}.weights."


def _read(model: SavedModel, dtype: torch.dtype, shapes: Shapes) -> Mapping[str, torch.Tensor]:
    weights = {name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}
    load_without_world({model.key(name): tensor for name, tensor in weights.items()}, model.address)
    return weights


def _check_shapes(model: SavedModel, expected: Shapes, source: Path) -> None:
    """Compare the saved weights with those of the source's model.

    Raises:
        CannotExport: names or shapes differ.
    """
    different = [
        f"{name} of shape {model.shapes.get(name)} instead of {expected.get(name)}"
        for name in sorted(expected.keys() | model.shapes.keys())
        if expected.get(name) != model.shapes.get(name)
    ]
    if different:
        num_more = len(different) - SHOWN_WEIGHTS
        more = f" and {num_more} more" if num_more > 0 else ""
        raise CannotExport(
            f"the checkpoint's weights of {model.role} are not those of the model that it was "
            f"trained from: got {', '.join(different[:SHOWN_WEIGHTS])}{more}, with the "
            f"config.json of {source}; give the folder of that model with --source"
        )


def _check_names(model: PreTrainedModel, source: Path) -> None:
    """Refuse models whose weights transformers saves under other names than their parameters'."""
    names = dict(model.named_parameters())
    if revert_weight_conversion(model, dict(names)).keys() != names.keys():
        raise UnsupportedModel(
            "a model whose weights have other names in files than in checkpoints: got "
            f"model_type {model.config.model_type!r} of {source}; let the run end, which writes "
            "the model to model/"
        )
