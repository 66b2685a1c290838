"""What is changed about vLLM once it is imported, each with its reason; its groups are in
`groups`.

Called by the engine before it builds vLLM's; nothing happens at import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

_Answer = TypeVar("_Answer")


def keep_ordinary_weights() -> None:
    """Stop vLLM's CPU backend from packing weights: only ordinary storage can be overwritten."""
    import vllm.model_executor.layers.utils as layer_utils

    def plain_linear(layer: torch.nn.Module, remove_weight: bool = False) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    layer_utils.dispatch_cpu_unquantized_gemm = plain_linear


def inspect_models_here() -> None:
    """Let vLLM look at a model's class in this process, which needs the class anyway.

    vLLM starts an interpreter for it, so that its own process has not touched CUDA before it forks:
    here nothing forks. It keeps the answer in the home folder, which in a pod is always empty.
    """
    import vllm.model_executor.models.registry as registry

    def run_here(look: Callable[[], _Answer]) -> _Answer:
        return look()

    registry._run_in_subprocess = run_here


def join_existing_world(rank: int, local_rank: int, world: str) -> None:
    """Let vLLM use the process group that exists, under a name of its own.

    On CPUs vLLM names shared memory after the text of the init method: `env://` alone would clash
    with any other world on the node, and with what a killed one left behind.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    def distributed_args(_executor: object) -> tuple[str, int, int]:
        return f"env://:{world}", rank, local_rank

    ExecutorWithExternalLauncher._distributed_args = distributed_args


def keep_the_world() -> None:
    """Let an engine that ends leave torch's world as it is, which is the process's own."""
    import vllm.v1.engine.core as core

    core.cleanup_dist_env_and_memory = lambda: None
