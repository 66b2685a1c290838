"""The process groups of a mesh, in the form in which Megatron takes them.

They are passed to every constructor and schedule, so that roles with different meshes live in one
process: Megatron's global `parallel_state` is never initialized. What Megatron 0.16 computes with
that alone is refused (more tensor ranks than key and value heads: `Architecture.check_cut`).
"""

from __future__ import annotations

import torch.distributed as dist

from rlhf_runtime.engines.megatron.core import ProcessGroupCollection
from rlhf_runtime.engines.parallel import ParallelContext


def process_groups(parallel: ParallelContext, is_tied: bool) -> ProcessGroupCollection:
    """A rank's groups. Every rank of the mesh makes them.

    Args:
        parallel: the mesh, as this rank sees it.
        is_tied: whether the first and the last stage hold the same embedding.
    """
    alone = parallel.own_group
    return ProcessGroupCollection(
        tp=parallel.tensor_group,
        pp=parallel.pipeline_group,
        dp=parallel.data_group,
        dp_cp=parallel.data_group,
        cp=alone,  # no context parallelism
        ep=alone,  # no experts
        expt_dp=alone,
        embd=_embedding_group(parallel) if is_tied else None,
        pos_embd=None,  # positions are rotated in, not embedded
    )


def _embedding_group(parallel: ParallelContext) -> dist.ProcessGroup | None:
    """The first and the last of this rank's stages; None on those between them."""
    if parallel.at.pipeline_size <= 2:
        return parallel.pipeline_group
    return parallel.ends_group
