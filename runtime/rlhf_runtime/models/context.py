"""Context length: the longest sequence that a model's generation engine accepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_api.spec.rollout import RolloutSpec
from rlhf_runtime.models.errors import ContextTooShort
from rlhf_runtime.models.folder import CONFIG_FILE, read_object

SCALED_ALREADY = frozenset(
    {"default", "deepseek_llama_scaling", "deepseek_yarn", "llama3", "longrope", "su", "yarn"}
)
"""Kinds of rotary scaling that max_position_embeddings already includes. Source: vLLM 0.32,
config/model.py, _get_and_verify_max_len."""


def require_context(role: str, config: Mapping[str, Any], rollout: RolloutSpec) -> None:
    """Check that a generating model accepts the longest prompt with the longest response.

    Args:
        role: role of the model.
        config: its config.json.
        rollout: lengths of prompts and responses.

    Raises:
        ContextTooShort: the model has fewer positions.
    """
    # Checked before anything starts: vLLM would refuse only after the engine has been built.
    positions, longest = max_positions(config), rollout.required_context_tokens
    if positions is not None and longest > positions:
        raise ContextTooShort(
            f"prompt and response together exceed the context of the model of {role}: got "
            f"{rollout.required_context} = {longest}, allowed max_position_embeddings = "
            f"{positions} (config.json); {rollout.context_advice}"
        )


def max_sequence_tokens(rollout: RolloutSpec, folder: Path) -> int:
    """Return the maximum of prompt and response together.

    Args:
        rollout: lengths of prompts and responses.
        folder: of the model.
    """
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    positions = max_positions(read_object(folder / CONFIG_FILE))
    return longest if positions is None else min(longest, positions)


def max_positions(config: Mapping[str, Any]) -> int | None:
    """The longest sequence that vLLM accepts for a model; None if its config does not state one.

    Args:
        config: its config.json.
    """
    # The same arithmetic as vLLM's. Multimodal models nest the settings of their decoder.
    own = config.get("text_config") or config
    positions = own.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    if isinstance(other := own.get("model_max_length"), int):
        positions = max(positions, other)
    scaling = own.get("rope_parameters") or own.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = scaling.get("factor")
    is_included = kind in SCALED_ALREADY or "gemma3" in str(own.get("model_type"))
    if is_included or not isinstance(factor, int | float):
        return positions
    return int(positions * factor)
