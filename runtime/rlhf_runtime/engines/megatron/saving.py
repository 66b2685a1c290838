"""From the stages of a mesh to a folder in Hugging Face format, without a whole model anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from rlhf_runtime.engines.heads import SCORE
from rlhf_runtime.engines.megatron.loading import HEAD
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.model_files import FILE_BYTES, Shapes, write_configs, write_weights
from rlhf_runtime.reshard.execute import execute
from rlhf_runtime.reshard.gathering import gather_pieces
from rlhf_runtime.reshard.layout import Layout, Piece, Pieces
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views


def save_model(
    stage: Stage, views: Views, folder: Path, dtype: torch.dtype, file_bytes: int = FILE_BYTES
) -> None:
    """Write the whole model; every rank of its mesh calls, the first one writes, file by file.

    One with a scalar head becomes a sequence classifier of one label, as reward models are.

    Args:
        stage: this rank's.
        views: this rank's part of its weights.
        folder: made if it is not there. What it holds under the same names is overwritten.
        dtype: of the weights in the files.
        file_bytes: what the first rank holds at a time beside its own weights.
    """
    is_first, is_scalar = stage.parallel.is_first, stage.architecture.has_scalar_head
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(stage.hf_config.name_or_path)
        write_configs(stage.hf_config, source, folder, dtype, is_scalar=is_scalar)
    held = gather_pieces(views, stage.parallel.group)
    write_weights(
        stage.architecture.shapes(),
        partial(_gather, views=views, held=held, stage=stage, dtype=dtype),
        folder,
        dtype,
        {HEAD: SCORE} if is_scalar else {},
        writes=is_first,
        file_bytes=file_bytes,
    )


def _gather(
    shapes: Shapes, views: Views, held: Sequence[Pieces], stage: Stage, dtype: torch.dtype
) -> Mapping[str, torch.Tensor]:
    """Some weights whole on the mesh's first rank; nothing on the others."""
    parallel = stage.parallel
    source = Layout(shapes, tuple(tuple(p for p in own if p.name in shapes) for own in held))
    whole = tuple(Piece(name, TensorSlice.full(shape)) for name, shape in shapes.items())
    target = Layout(shapes, (whole, *((),) * (parallel.size - 1)))
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
