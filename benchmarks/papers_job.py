"""The job and the cluster of HybridFlow's evaluation, as the planner takes them.

PPO with actor, critic, reference and reward model, all of the same size: 1,024 prompts of 1,024
tokens, all responses of 1,024 tokens, 8 updates in a step, nothing offloaded.

Source: HybridFlow (arXiv 2409.19256), section 8.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.cost.hardware import HARDWARE, Hardware
from rlhf_planner.plan import resolve_shapes
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_sizing.shape import DecoderShape

GPU, GPUS_PER_NODE, GPU_BYTES = "A100-80G", 8, 80 * 2**30
NODE_BITS_PER_SECOND = 200e9
"""Network bandwidth of a node, shared by its GPUs."""
UPDATES = 8
"""Optimizer updates in a step."""


class Batch(NamedTuple):
    """The batch of a step; all prompts are equally long, and all responses."""

    prompts: int
    prompt_tokens: int
    response_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of a sequence."""
        return self.prompt_tokens + self.response_tokens


SHORT = Batch(1024, 1024, 1024)
# As many tokens as SHORT, so that only the length of sequences differs.
LONG = Batch(256, 1024, 7168)
"""Sequences of 8,192 tokens."""


def _llama(layers: int, hidden: int, middle: int, heads: int, key_values: int) -> DecoderShape:
    return DecoderShape(layers, hidden, middle, heads, key_values, 128, 32000, family="llama")


# The paper says only how large its models are. Those of Llama 2, and for 34B Code Llama, have
# these sizes.
MODELS: Mapping[str, DecoderShape] = {
    "7B": _llama(32, 4096, 11008, 32, 32),
    "13B": _llama(40, 5120, 13824, 40, 40),
    "34B": _llama(48, 8192, 22016, 64, 8),
    "70B": _llama(80, 8192, 28672, 64, 8),
}
"""Source: Llama 2 (arXiv 2307.09288) and Code Llama (arXiv 2308.12950), their config.json."""


def paper_hardware() -> Hardware:
    """An A100 of the preset with its share of its node's network."""
    share = NODE_BITS_PER_SECOND / 8 / GPUS_PER_NODE
    return replace(HARDWARE[GPU], network_bytes_per_second=share)


def paper_pool(num_gpus: int) -> Pool:
    """A pool of `num_gpus`, in full nodes."""
    return Pool(
        name="pool",
        device=Device.GPU,
        nodes=num_gpus // GPUS_PER_NODE,
        devices_per_node=GPUS_PER_NODE,
        memory_bytes_per_device=GPU_BYTES,
        gpu=GPU,
    )


def paper_problem(model: str, num_gpus: int, batch: Batch = SHORT) -> PlanningProblem:
    """The job on `num_gpus`; the planner chooses parallelism and placement.

    Args:
        model: one of `MODELS`.
        num_gpus: a multiple of a node's.
        batch: of a step.
    """
    job = RLHFJob.model_validate(_manifest(MODELS[model], batch))
    graphs = trace_job(job, Device.GPU)
    shapes = resolve_shapes(job, graphs)
    problem = problem_of(job, graphs, (paper_pool(num_gpus),), shapes)
    # A manifest's reward model is sharded by FSDP; in the paper Megatron cuts it like the others.
    role, actor = job.spec.rewards[0].model_role, problem.models["actor"]
    reward = replace(problem.models[role], engine=TrainingEngineType.MEGATRON, fixed=actor.fixed)
    return replace(problem, models={**problem.models, role: reward})


def _manifest(shape: DecoderShape, batch: Batch) -> dict[str, Any]:
    training = {"engine": "Megatron", "offload": "Never", "precision": "bfloat16"}
    role = {"source": {"path": "/models/llama"}, "shape": _shape(shape), "training": training}
    return {
        "apiVersion": "rlhf-operator.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "papers"},
        "spec": {
            "algorithm": {"type": "PPO", "ppo": {"klCoefficient": 0.05}},
            "models": {"actor": role, "critic": role, "reference": role},
            "rewards": [{"model": {"path": "/models/reward", "shape": _shape(shape)}}],
            "data": {"train": {"path": "prompts.jsonl"}},
            "rollout": {
                "maxPromptTokens": batch.prompt_tokens,
                "maxResponseTokens": batch.response_tokens,
                "expectedPromptTokens": batch.prompt_tokens,
                "expectedResponseTokens": batch.response_tokens,
            },
            "schedule": {
                "steps": 1,
                "promptsPerStep": batch.prompts,
                "miniBatchPrompts": batch.prompts // UPDATES,
            },
        },
    }


def _shape(shape: DecoderShape) -> dict[str, int]:
    return {
        "numLayers": shape.num_layers,
        "hiddenSize": shape.hidden_size,
        "intermediateSize": shape.intermediate_size,
        "numAttentionHeads": shape.num_attention_heads,
        "numKeyValueHeads": shape.num_key_value_heads,
        "headDim": shape.head_dim,
        "vocabSize": shape.vocab_size,
    }
