"""Pairs of responses as lines of a data set that can be trained on again."""

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
    """Which prompt it answers."""
    record: str
    """The data's row, as the data host sends it: JSON of `prompt` and `record`."""
    text: str
    score: float
    preference: int
    """Above 0: it is chosen; below 0: it is rejected; 0: it is in no pair."""


def pair_lines(responses: Sequence[Response], prompt_field: str, step: int) -> list[str]:
    """For each response that is chosen its pairs, a line of JSON each; for all others nothing.

    Pairs with an empty response, or of two equal ones, are left out: data of preferences cannot
    have them.

    Args:
        responses: of each prompt all that are in pairs.
        prompt_field: what the data's rows name their prompt.
        step: the training step.

    Raises:
        UserCodeFailed: a row without such a field.
    """
    rejected: defaultdict[int, list[Response]] = defaultdict(list)
    for each in responses:
        if each.preference < 0:
            rejected[each.group].append(each)
    lines = []
    for each in responses:
        others = rejected[each.group] if each.preference > 0 else []
        usable = (other for other in others if _can_be_data(each.text, other.text))
        lines.append("\n".join(_line(each, other, prompt_field, step) for other in usable))
    return lines


def _can_be_data(chosen: str, rejected: str) -> bool:
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
    return json.dumps({**row, **pair}, allow_nan=False)
