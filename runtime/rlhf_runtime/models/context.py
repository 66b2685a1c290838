"""How long sequences may be that a model's generation engine takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_runtime.models.errors import ContextTooShort

SCALED_ALREADY = frozenset(
    {"default", "deepseek_llama_scaling", "deepseek_yarn", "llama3", "longrope", "su", "yarn"}
)
"""Kinds of rotary scaling whose max_position_embeddings are those after it. Source: vLLM 0.32,
config/model.py, _get_and_verify_max_len."""


def require_context(role: str, config: Mapping[str, Any], longest: int) -> None:
    """Check that a model that generates takes the longest prompt with the longest response.

    Args:
        role: whose model it is.
        config: its config.json.
        longest: tokens of both.

    Raises:
        ContextTooShort: it does not; vLLM would refuse to start.
    """
    positions = max_positions(config)
    if positions is not None and longest > positions:
        raise ContextTooShort(
            f"prompt and response together are longer than the model of {role} takes: got "
            f"rollout.maxPromptTokens + rollout.maxResponseTokens = {longest}, allowed "
            f"max_position_embeddings = {positions} (config.json); lower one of them, or choose a "
            "model of longer context"
        )


def max_positions(config: Mapping[str, Any]) -> int | None:
    """The longest sequence that vLLM takes for a model; None where its config does not say.

    Args:
        config: its config.json.
    """
    own = config.get("text_config") or config
    positions = own.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    if isinstance(other := own.get("model_max_length"), int):
        positions = max(positions, other)
    scaling = own.get("rope_parameters") or own.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = scaling.get("factor")
    is_counted = kind in SCALED_ALREADY or "gemma3" in str(own.get("model_type"))
    if is_counted or not isinstance(factor, int | float):
        return positions
    return int(positions * factor)
