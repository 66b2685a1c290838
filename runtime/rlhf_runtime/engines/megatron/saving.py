"""From the stages of a mesh to a folder in Hugging Face format, without a whole model anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, GenerationConfig

from rlhf_runtime.engines.heads import SCORE
from rlhf_runtime.engines.megatron.loading import HEAD, INDEX, WEIGHTS
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.reshard.boxes import Box
from rlhf_runtime.reshard.execute import execute
from rlhf_runtime.reshard.gathering import pieces_of
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import View, Views

FILE_BYTES = 5 << 30
"""Size of a file of weights, as transformers writes them; more only where one weight is larger."""

Shapes = Mapping[str, tuple[int, ...]]


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
    parallel = stage.parallel
    if parallel.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        _write_configs(stage, folder, dtype)
    shapes = stage.architecture.shapes()
    held = _pieces_of_all(views, stage)
    groups = list(_by_file(shapes, file_bytes // dtype.itemsize))
    names = _file_names(len(groups))
    for file, own in zip(names, groups, strict=True):
        weights = _gather(own, views, held, stage, dtype)
        if parallel.is_first:
            weights = {saved_name(stage, name): tensor for name, tensor in weights.items()}
            save_file(weights, folder / file, metadata={"format": "pt"})
    if parallel.is_first and len(groups) > 1:
        places = {
            saved_name(stage, name): file
            for file, own in zip(names, groups, strict=True)
            for name in own
        }
        _write_index(folder, shapes, places, dtype)


def saved_name(stage: Stage, name: str) -> str:
    """What a weight is called in files."""
    return SCORE if stage.architecture.has_scalar_head and name == HEAD else name


def _by_file(shapes: Shapes, max_elements: int) -> Iterator[Shapes]:
    """Neighbouring weights, as many as fit into a file."""
    group: dict[str, tuple[int, ...]] = {}
    elements = 0
    for name, shape in shapes.items():
        if group and elements + math.prod(shape) > max_elements:
            yield group
            group, elements = {}, 0
        group[name] = shape
        elements += math.prod(shape)
    yield group


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [WEIGHTS]
    return [f"model-{1 + number:05d}-of-{count:05d}.safetensors" for number in range(count)]


def _pieces_of_all(views: Views, stage: Stage) -> list[tuple[Piece, ...]]:
    mine = pieces_of(views)
    held = [mine] * stage.parallel.size
    if stage.parallel.size > 1:
        dist.all_gather_object(held, mine, stage.parallel.group)
    return held


def _gather(
    shapes: Shapes, views: Views, held: list[tuple[Piece, ...]], stage: Stage, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Some weights whole on the mesh's first rank; nothing on the others."""
    parallel = stage.parallel
    source = Layout(shapes, tuple(tuple(p for p in own if p.name in shapes) for own in held))
    whole = tuple(Piece(name, Box.whole(shape)) for name, shape in shapes.items())
    target = Layout(shapes, (whole, *((),) * (parallel.size - 1)))
    weights = {}
    if parallel.is_first:
        weights = {name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}
    execute(
        plan_reshard(source, target),
        parallel.rank,
        views,
        {name: [View(tensor, Box.whole(shapes[name]))] for name, tensor in weights.items()},
        parallel.group,
    )
    return weights


def _write_configs(stage: Stage, folder: Path, dtype: torch.dtype) -> None:
    config = deepcopy(stage.hf_config)
    config.dtype = dtype
    config.use_cache = True
    if stage.architecture.has_scalar_head:
        config.num_labels = 1
        config.architectures = [MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)].__name__]
        config.save_pretrained(folder)
        return  # it does not generate
    config.save_pretrained(folder)
    source = Path(config.name_or_path)
    if (source / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(source, local_files_only=True)
    else:
        generation = GenerationConfig.from_model_config(config)
    generation.save_pretrained(folder)


def _write_index(
    folder: Path, shapes: Shapes, places: Mapping[str, str], dtype: torch.dtype
) -> None:
    elements = sum(map(math.prod, shapes.values()))
    index = {
        "metadata": {"total_parameters": elements, "total_size": elements * dtype.itemsize},
        "weight_map": dict(sorted(places.items())),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
