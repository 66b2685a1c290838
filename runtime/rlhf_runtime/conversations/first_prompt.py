"""The prompt of a conversation, with what its environment observes at the beginning."""

from __future__ import annotations

import json

from rlhf_runtime.data.row_text import OBSERVATION_MARK


def with_observation(record: str, observation: str) -> str:
    """Return the text of a prompt with an observation.

    Args:
        record: the column `record` of the row.
        observation: of the environment's `reset`.
    """
    marked: str = json.loads(record)["marked_prompt"]
    return marked.replace(OBSERVATION_MARK, observation)


def with_prompt(record: str, prompt: str) -> str:
    """Return the record of a row with another prompt.

    Args:
        record: the column `record` of the row.
        prompt: its text.
    """
    row = json.loads(record)
    row.pop("marked_prompt", None)
    return json.dumps({**row, "prompt": prompt})
