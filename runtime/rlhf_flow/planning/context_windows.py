"""How long sequences may be of well-known models that generate, so that a job whose responses no
engine would take is refused before it asks for a GPU. Pure.

Of models that are not known, or are on this machine, config.json says it before a start.

Source: max_position_embeddings of each model's config.json; where versions differ the larger.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName
from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.planning.known_models import KNOWN_MODELS
from rlhf_flow.trace.graph import Graph

KIBI = 1024
BY_PREFIX: Mapping[str, int] = {
    "meta-llama/Llama-3.": 128 * KIBI,
    "mistralai/Mistral-7B-": 32 * KIBI,
    "Qwen/Qwen2.5-Math-": 4 * KIBI,
    "Qwen/Qwen2.5-": 128 * KIBI,
    "Qwen/Qwen3-": 40 * KIBI,
    "google/gemma-2-": 8 * KIBI,
    "google/gemma-3-1b-": 32 * KIBI,
}
"""Tokens; the first that fits a model's id."""
QWEN25_INSTRUCT = 32 * KIBI
"""Tokens of those that end in it."""


def context_tokens(model: str) -> int | None:
    """The longest sequence of a model of the hub. None: it is not known.

    Args:
        model: its id.
    """
    if model not in KNOWN_MODELS:
        return None
    if model.startswith("Qwen/Qwen2.5-") and model.endswith("-Instruct"):
        return QWEN25_INSTRUCT
    return next((most for prefix, most in BY_PREFIX.items() if model.startswith(prefix)), None)


def check_contexts(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> None:
    """Check that the models which generate take the longest prompt with the longest response.

    Raises:
        ManifestError: one does not; vLLM would refuse to start.
    """
    rollout = job.spec.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    for role in dict.fromkeys(
        role for graph in graphs.values() for role in graph.roles_with(CallKind.GENERATE)
    ):
        model = job.spec.model_for(job.spec.origin_of(role)).source.hugging_face
        most = None if model is None else context_tokens(model)
        if most is not None and longest > most:
            raise ManifestError(
                [
                    Problem(
                        ("spec", "rollout", "maxResponseTokens"),
                        f"prompt and response together are longer than the model of {role} takes",
                        got=f"maxPromptTokens + maxResponseTokens = {longest:,}",
                        allowed=f"{most:,}, the context of {model}",
                        do="lower one of them, or choose a model of longer context",
                    )
                ]
            )
