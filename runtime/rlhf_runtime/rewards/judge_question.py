"""The question that a judge is asked about a response."""

from __future__ import annotations

import json
import re

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards.errors import InvalidReward
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.row_values import field_value

# A brace that is written twice, an entry of the row, or a name.
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{record\.(?P<entry>[^{}]+)\}|\{(?P<name>[A-Za-z_]\w*)\}")
_BRACES = {"{{": "{", "}}": "}"}
_NAMES = ("prompt", "response")


def require_known_placeholders(reward: RewardSpec) -> None:
    """Check the placeholders of a judge's question.

    Raises:
        InvalidReward: one names no part of a sample.
    """
    assert reward.judge is not None
    for match in _PLACEHOLDER.finditer(reward.judge.prompt):
        if match["name"] is not None and match["name"] not in _NAMES:
            raise InvalidReward(
                f"the question of the judge {reward.name} has an unknown placeholder: got "
                f"{match[0]}, allowed {{prompt}}, {{response}} and {{record.NAME}} with the name "
                f"of a column; correct it, or write {{{match[0]}}} for braces"
            )


def named_entries(question: str) -> tuple[str, ...]:
    """Return the entries of a row that a question names."""
    entries = (match["entry"] for match in _PLACEHOLDER.finditer(question))
    return tuple(dict.fromkeys(entry for entry in entries if entry is not None))


def fill_question(question: str, sample: Sample) -> str:
    """Replace the placeholders of a question.

    Raises:
        ValueError: the row lacks an entry.
    """

    def value_of(match: re.Match[str]) -> str:
        if match["name"] is not None:
            return sample.prompt if match["name"] == "prompt" else sample.response
        if match["entry"] is None:
            return _BRACES[match[0]]
        try:
            value = field_value(sample.record, match["entry"])
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"the row has no entry for {match[0]}: allowed {', '.join(sample.record)}; correct "
                "the judge's prompt"
            ) from error
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PLACEHOLDER.sub(value_of, question)
