"""The question that a judge is asked about a response."""

from __future__ import annotations

import json
import re

from rlhf_api.judge_placeholders import PLACEHOLDER
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.row_values import field_value

_BRACES = {"{{": "{", "}}": "}"}


def named_entries(question: str) -> tuple[str, ...]:
    """Return the entries of a row that a question names."""
    entries = (match["entry"] for match in PLACEHOLDER.finditer(question))
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

    return PLACEHOLDER.sub(value_of, question)
