"""The prompt of a conversation, with what its environment observes at the beginning."""

from __future__ import annotations

import json

from rlhf_runtime.conversations.interfaces import Dialogue
from rlhf_runtime.data.row_text import OBSERVATION_MARK
from rlhf_runtime.environments.results import EpisodeFailure, FailureKind


def marked_prompt(record: str) -> str:
    """Return the text of a prompt with OBSERVATION_MARK.

    Args:
        record: the column `record` of the row.
    """
    marked: str = json.loads(record)["marked_prompt"]
    return marked


def with_observation(marked: str, observation: str, dialogue: Dialogue) -> str:
    """Return the text of a prompt with an observation.

    Args:
        marked: the prompt with OBSERVATION_MARK.
        observation: of the environment's `reset`.
        dialogue: of the model with its tools.
    """
    # It must not end the message that it stands in.
    return marked.replace(OBSERVATION_MARK, dialogue.harmless(observation))


def with_prompt(record: str, prompt: str) -> str:
    """Return the record of a row with another prompt.

    Args:
        record: the column `record` of the row.
        prompt: its text.
    """
    row = json.loads(record)
    row.pop("marked_prompt", None)
    return json.dumps({**row, "prompt": prompt})


def length_failure(num_tokens: int, limit: int) -> EpisodeFailure | None:
    """Return the failure of a conversation whose prompt has become too long; None: it has not.

    Args:
        num_tokens: of the prompt with the observation.
        limit: rollout.maxPromptTokens.
    """
    if num_tokens <= limit:
        return None
    return EpisodeFailure(
        FailureKind.ENVIRONMENT_FAILED,
        f"the prompt with the observation of reset is too long: got {num_tokens} tokens, allowed "
        f"{limit} (rollout.maxPromptTokens); shorten it, or raise the limit",
    )
