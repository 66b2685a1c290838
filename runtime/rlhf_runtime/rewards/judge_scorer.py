"""A language model that grades responses, behind an API like OpenAI's."""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections.abc import Sequence
from typing import Any

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import JudgeScale
from rlhf_runtime.rewards.errors import InvalidReward
from rlhf_runtime.rewards.grades import find_grade
from rlhf_runtime.rewards.messages import BatchScores
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.service_scorer import ServiceScorer, Sleep
from rlhf_runtime.row_values import field_value

_PLACE = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
_RECORD = "record."


class JudgeScorer(ServiceScorer):
    """Asks for a grade of each response."""

    def __init__(self, spec: RewardSpec, sleep: Sleep = asyncio.sleep) -> None:
        """Start the thread; sends no request yet.

        Raises:
            InvalidReward: the question names something that a sample does not have.
            RewardError: a variable with a header's value is not set, or has no such value.
        """
        assert spec.judge is not None
        require_known_places(spec)
        url = f"{spec.judge.url.rstrip('/')}/chat/completions"
        super().__init__(spec, url, 1, sleep)
        self._judge = spec.judge

    def body(self, batch: Sequence[Sample]) -> Any:
        """Return a request for the grade of the only response.

        Raises:
            ValueError: the row lacks an entry that the question names.
        """
        (sample,) = batch
        judge = self._judge
        question = {"role": "user", "content": fill_question(judge.prompt, sample)}
        system = {"role": "system", "content": judge.system_prompt}
        return {
            "model": judge.model,
            "messages": [system, question] if judge.system_prompt else [question],
            "temperature": judge.temperature,
            "max_tokens": judge.max_tokens,
        }

    def read(self, content: bytes, num_samples: int) -> BatchScores:
        """Read the grade."""
        text, scale = _message(content), self._judge.scale
        grade = None if text is None else find_grade(text, scale.highest)
        if grade is None or not scale.lowest <= grade <= scale.highest:
            said = content if text is None else text.encode()
            allowed = f"a grade from {scale.lowest:g} to {scale.highest:g}, such as `Score: 3`"
            return self.unreadable(said, allowed)
        return BatchScores(array("f", [_share(grade, scale)]))


def require_known_places(reward: RewardSpec) -> None:
    """Check the names in braces of a judge's question.

    Raises:
        InvalidReward: one is not that of a part of a sample.
    """
    assert reward.judge is not None
    for name in _PLACE.findall(reward.judge.prompt):
        if name not in ("prompt", "response") and not name.startswith(_RECORD):
            raise InvalidReward(
                f"the question of the judge {reward.name} has an unknown place: got {{{name}}}, "
                "allowed {prompt}, {response} and {record.NAME} with the name of a column; "
                "correct it"
            )


def fill_question(question: str, sample: Sample) -> str:
    """Replace the places of a question.

    Raises:
        ValueError: the row lacks an entry.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if not name.startswith(_RECORD):
            return sample.prompt if name == "prompt" else sample.response
        try:
            value = field_value(sample.record, name.removeprefix(_RECORD))
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"the row has no entry for {match[0]}: allowed {', '.join(sample.record)}; correct "
                "the judge's prompt"
            ) from error
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return _PLACE.sub(value_of, question)


def _message(content: bytes) -> str | None:
    """Return the text of an answer of the API; None if it has none, or only a part of it."""
    try:
        choice = json.loads(content)["choices"][0]
        text, is_cut = choice["message"]["content"], choice.get("finish_reason") == "length"
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return text if isinstance(text, str) and not is_cut else None


def _share(grade: float, scale: JudgeScale) -> float:
    return (grade - scale.lowest) / (scale.highest - scale.lowest)
