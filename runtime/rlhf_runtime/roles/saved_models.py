"""Models in a checkpoint: which there are, and each as a folder in Hugging Face format.

One process reads them, without a world of ranks, whatever the cut under which they were saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from rlhf_runtime.checkpoint.saver import load_alone, parts_of, saved_shapes
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

SHOWN_WEIGHTS = 3
"""Of those that differ, in a message."""


@dataclass(frozen=True)
class SavedModel:
    """The weights of a role in a checkpoint."""

    role: str
    address: str
    """Of the part that holds it."""
    shapes: Shapes
    """Of its full weights, by name."""
    is_trained: bool
    """Whether it has an optimizer; else it only took another role's weights."""

    def key(self, name: str) -> str:
        """What a weight is called in the part."""
        return f"{_weights_of(self.role)}{name}"


def saved_models(address: str) -> dict[str, SavedModel]:
    """Every role of a checkpoint, in order of their names.

    Raises:
        StorageFailed: it cannot be read.
    """
    found = {}
    for part in parts_of(address):
        shapes = saved_shapes(part)
        for role in (match[1] for match in map(SAVED_ROLE.fullmatch, shapes) if match):
            prefix = _weights_of(role)
            own = {
                key.removeprefix(prefix): shape
                for key, shape in shapes.items()
                if key.startswith(prefix) and shape is not None
            }
            found[role] = SavedModel(role, part, own, f"roles.{role}.optimizer.updates" in shapes)
    return dict(sorted(found.items()))


def export_model(
    model: SavedModel,
    source: Path,
    folder: Path,
    dtype: torch.dtype,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write config and weights as the run itself leaves its model.

    At most one file's weights are held, beside one box of what was saved.

    Args:
        model: of a checkpoint.
        source: the folder that the role was trained from.
        folder: is there.
        dtype: of the weights in the files.
        file_bytes: size of a file of weights.

    Raises:
        CannotExport: the source is not that of this model.
        UnsupportedModel: files name its weights in another way than the model does, or it has no
            class for its head.
        StorageFailed: it cannot be read.
    """
    config = read_config(source)
    config.dtype = torch.float32
    head = output_weight_name(meta_model(config))
    is_scalar = model.shapes.get(head, (0,))[0] == 1
    if is_scalar:
        make_scalar_config(config)
    expected = meta_model(config)
    shapes = {name: tuple(each.shape) for name, each in expected.named_parameters()}
    if is_scalar:
        shapes[head] = (1, *shapes[head][1:])
    _check_shapes(model, shapes, source)
    _check_names(expected, source)
    write_configs(config, source, folder, dtype, is_scalar=is_scalar)
    names = {head: SCORE} if is_scalar else {}
    write_weights(shapes, partial(_read, model, dtype), folder, dtype, names, file_bytes=file_bytes)


def _weights_of(role: str) -> str:
    """Before the names of its weights, as `state_of` saves them."""
    return f"roles.{role}.weights."


def _read(model: SavedModel, dtype: torch.dtype, shapes: Shapes) -> Mapping[str, torch.Tensor]:
    weights = {name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}
    load_alone({model.key(name): tensor for name, tensor in weights.items()}, model.address)
    return weights


def _check_shapes(model: SavedModel, expected: Shapes, source: Path) -> None:
    """Compare what was saved with what the folder's model consists of.

    Raises:
        CannotExport: names or shapes are other ones.
    """
    wrong = [
        f"{name} of shape {model.shapes.get(name)} instead of {expected.get(name)}"
        for name in sorted(expected.keys() | model.shapes.keys())
        if expected.get(name) != model.shapes.get(name)
    ]
    if wrong:
        more = f" and {len(wrong) - SHOWN_WEIGHTS} more" if len(wrong) > SHOWN_WEIGHTS else ""
        raise CannotExport(
            f"the checkpoint's weights of {model.role} are not those of the model that it was "
            f"trained from: got {', '.join(wrong[:SHOWN_WEIGHTS])}{more}, with the config.json of "
            f"{source}; give the folder of that model with --source"
        )


def _check_names(model: PreTrainedModel, source: Path) -> None:
    """Refuse models that transformers writes under other names than those of their parameters."""
    names = dict(model.named_parameters())
    if revert_weight_conversion(model, dict(names)).keys() != names.keys():
        raise UnsupportedModel(
            "a model whose weights are called otherwise in files than in checkpoints: got "
            f"model_type {model.config.model_type!r} of {source}; let the run come to its end, "
            "which leaves it in model/"
        )
