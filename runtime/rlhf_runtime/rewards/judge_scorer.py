"""A language model that grades responses, behind an API like OpenAI's."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import JudgeScale
from rlhf_runtime.rewards.grades import find_grade
from rlhf_runtime.rewards.judge_question import fill_question
from rlhf_runtime.rewards.messages import BatchScores
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.service_scorer import ServiceScorer, Sleep


class JudgeScorer(ServiceScorer):
    """Asks for a grade of each response."""

    def __init__(self, spec: RewardSpec, sleep: Sleep = asyncio.sleep) -> None:
        """Start the thread; sends no request yet.

        Raises:
            RewardError: a variable with a header's value is not set, or has no such value.
        """
        assert spec.judge is not None
        super().__init__(spec, _completions_url(spec.judge.url), 1, sleep)
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
        request: dict[str, Any] = {
            "model": judge.model,
            "messages": [system, question] if judge.system_prompt else [question],
            "temperature": judge.temperature,
        }
        # OpenAI's newer models refuse the older name.
        if "max_completion_tokens" not in judge.parameters:
            request["max_tokens"] = judge.max_tokens
        if judge.chat_template_arguments:
            request["chat_template_kwargs"] = dict(judge.chat_template_arguments)
        return request | dict(judge.parameters)

    def read(self, content: bytes, num_samples: int) -> BatchScores:
        """Read the grade."""
        answer, scale = _answer(content), self._judge.scale
        if answer is None:
            return self.unreadable(content, "an answer of Chat Completions, with a text")
        said = answer.text.encode(errors="replace")
        if answer.is_cut:
            return self.unreadable(said, f"an answer within maxTokens = {self._judge.max_tokens}")
        grade = find_grade(answer.text, scale.highest)
        if grade is None or not scale.lowest <= grade <= scale.highest:
            allowed = f"a grade from {scale.lowest:g} to {scale.highest:g}, such as `Score: 3`"
            return self.unreadable(said, allowed)
        return BatchScores(array("f", [_normalized(grade, scale)]))

    @property
    def remedy(self) -> str:
        """Advice about a refused request, or an answer that cannot be used."""
        return "correct the judge's prompt, scale, maxTokens, model, headers or url"


def _completions_url(base: str) -> str:
    parts = urlsplit(base)
    path = f"{parts.path.rstrip('/')}/chat/completions"
    return parts._replace(path=path).geturl()  # with the query, such as Azure's api-version


class _Answer(NamedTuple):
    """An answer of the API."""

    text: str
    is_cut: bool
    """True if it was cut off at maxTokens."""


def _answer(content: bytes) -> _Answer | None:
    """Return the answer of the API; None if it has no text."""
    try:
        choice = json.loads(content)["choices"][0]
        text, is_cut = choice["message"]["content"], choice.get("finish_reason") == "length"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    # A model that only thought has no text.
    return _Answer(text or "", is_cut) if isinstance(text, str) or is_cut else None


def _normalized(grade: float, scale: JudgeScale) -> float:
    return (grade - scale.lowest) / (scale.highest - scale.lowest) + 0.0  # never -0.0
