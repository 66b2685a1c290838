"""Everything that is changed about vLLM, in one place, each with its reason.

Called once per process by the engine before it builds an `LLM`; nothing happens at import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch

_Answer = TypeVar("_Answer")

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process, beside the trainer
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # ranks share cores; the operating system places threads
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Read by vLLM at import."""

CPU_ENVIRONMENT = {
    # vLLM compiles a helper for log-probabilities at the first request: many seconds for nothing.
    "TORCH_COMPILE_DISABLE": "1",
}


def prepare_environment(device: torch.device) -> None:
    """Set what vLLM reads at import; a value that the user has set stays."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if device.type == "cpu":
        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)


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


def join_existing_world(rank: int, local_rank: int, incarnation: str) -> None:
    """Let vLLM use the process group that exists, under a name of this incarnation's own.

    On CPUs vLLM names shared memory after the text of the init method: `env://` alone would clash
    with any other world on the node, and with what a killed one left behind.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    def distributed_args(_executor: object) -> tuple[str, int, int]:
        return f"env://:{incarnation}", rank, local_rank

    ExecutorWithExternalLauncher._distributed_args = distributed_args
