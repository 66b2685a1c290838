"""Writes pairs of responses as lines of a preference data set."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_runtime.errors import UserCodeFailed


@dataclass(frozen=True)
class Response:
    """A response to one of a step's prompts."""

    group: int
    """Number of the prompt that it answers."""
    record: str
    """The data's row, as the data host sends it: JSON of `prompt` and `record`."""
    text: str
    score: float
    preference: int
    """Above 0: chosen; below 0: rejected; 0: in no pair."""


def pair_lines(responses: Sequence[Response], prompt_field: str, step: int) -> list[str]:
    """Write the pairs of each chosen response, one line of JSON per pair; empty for all others.

    Pairs with an empty response, or of two equal ones, are left out.

    Args:
        responses: for each prompt all responses that are in pairs.
        prompt_field: the field of the data's rows that holds the prompt.
        step: the training step.

    Raises:
        UserCodeFailed: a row without that field.
    """
    rejected: defaultdict[int, list[Response]] = defaultdict(list)
    for response in responses:
        if response.preference < 0:
            rejected[response.group].append(response)
    lines = []
    for response in responses:
        others = rejected[response.group] if response.preference > 0 else []
        usable = (other for other in others if _is_valid_pair(response.text, other.text))
        lines.append("\n".join(_line(response, other, prompt_field, step) for other in usable))
    return lines


def _is_valid_pair(chosen: str, rejected: str) -> bool:
    # data.train refuses rows with empty or equal responses.
    return bool(chosen.strip()) and bool(rejected.strip()) and chosen != rejected


def _line(chosen: Response, rejected: Response, prompt_field: str, step: int) -> str:
    row: Mapping[str, Any] = json.loads(chosen.record)["record"]
    if prompt_field not in row:
        raise UserCodeFailed(
            f"PairLines(prompt_field={prompt_field!r}) names a field that the data's row does not "
            f"have: got {', '.join(row) or 'no fields'}; name the one that holds the prompt"
        )
    pair = {
        "prompt": row[prompt_field],
        "chosen": chosen.text,
        "rejected": rejected.text,
        "chosen_score": chosen.score,
        "rejected_score": rejected.score,
        "step": step,
    }
    # The row's other fields stay, so that verifiers can score the pairs again.
    return json.dumps({**row, **pair}, allow_nan=False)
