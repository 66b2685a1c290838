"""Layout of vLLM's storage: views of its fused, cut parameters by Hugging Face name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views


def vllm_views(model: nn.Module) -> Views:
    """Views of this rank's storage, by Hugging Face name.

    Raises:
        UnsupportedModel: a module fuses weights without naming them.
    """
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    views: dict[str, list[View]] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        for local_name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:  # a tied weight is listed by both of its modules
                continue
            seen.add(id(parameter))
            for name, view, box in _weight_slices(path, local_name, module, parameter.data, fused):
                views.setdefault(name, []).append(View(view, box))
    return views


WeightSlice = tuple[str, torch.Tensor, TensorSlice]
"""A weight's name, a view of its part in a rank's storage, and the part's box."""


def _weight_slices(
    path: str, local: str, module: nn.Module, tensor: torch.Tensor, fused: Mapping[str, list[str]]
) -> Iterator[WeightSlice]:
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        RowParallelLinear,
    )
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    parent, _, last = path.rpartition(".")
    prefix = f"{parent}." if parent else ""
    if isinstance(module, QKVParallelLinear | MergedColumnParallelLinear):
        if last not in fused:
            raise UnsupportedModel(
                f"vLLM fuses {path} but does not say from what: got a model class without an entry "
                f"{last!r} in packed_modules_mapping; use a model whose class has one"
            )
        row = 0
        for part, (start, rows) in zip(fused[last], _fused_rows(module), strict=True):
            box = _row_slice(tensor, start, rows)
            yield f"{prefix}{part}.{local}", tensor[row : row + rows], box
            row += rows
    elif isinstance(module, ColumnParallelLinear):
        rows = tensor.shape[0]
        yield f"{path}.{local}", tensor, _row_slice(tensor, module.tp_rank * rows, rows)
    elif isinstance(module, RowParallelLinear) and local == "weight":
        columns = tensor.shape[1]
        box = TensorSlice((0, module.tp_rank * columns), tuple(tensor.shape))
        yield f"{path}.{local}", tensor, box
    elif isinstance(module, VocabParallelEmbedding):
        # Without the padding of the vocabulary, and without rows of added tokens.
        first = module.shard_indices.org_vocab_start_index
        rows = module.shard_indices.org_vocab_end_index - first
        yield f"{path}.{local}", tensor[:rows], _row_slice(tensor, first, rows)
    else:
        yield f"{path}.{local}", tensor, TensorSlice((0,) * tensor.dim(), tuple(tensor.shape))


def _fused_rows(module: Any) -> list[tuple[int, int]]:
    """Start in the full tensor and number of rows, for every part of a fused projection."""
    from vllm.model_executor.layers.linear import QKVParallelLinear

    if isinstance(module, QKVParallelLinear):
        query = module.num_heads * module.head_size
        key = module.num_kv_heads * module.head_size
        value = module.num_kv_heads * module.v_head_size
        # With fewer heads of keys than ranks, several ranks have the same head.
        shard = module.tp_rank // module.num_kv_head_replicas
        return [(module.tp_rank * query, query), (shard * key, key), (shard * value, value)]
    rows = [size // module.tp_size for size in module.output_sizes]
    return [(module.tp_rank * count, count) for count in rows]


def _row_slice(tensor: torch.Tensor, start: int, rows: int) -> TensorSlice:
    return TensorSlice((start, *(0,) * (tensor.dim() - 1)), (rows, *tensor.shape[1:]))
