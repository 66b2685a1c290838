"""Several attempts at a task of reasoning_gym, with its score after each."""

from __future__ import annotations

from typing import Any

import reasoning_gym


class ReasoningGymTask:
    """A conversation about a row of `data.train.reasoningGym`."""

    def __init__(self, *, attempts: int = 3) -> None:
        self._attempts = attempts
        self._score = 0.0

    def reset(self, question: str, answer: Any, metadata: dict, parameters: dict) -> None:
        """Take the columns of a row; the prompt has the question alone."""
        self._task = reasoning_gym.create_dataset(metadata["source_dataset"], **parameters)
        self._entry = {"question": question, "answer": answer, "metadata": metadata}

    def answer(self, text: str) -> str:
        """Answer the question.

        Args:
            text: the answer and nothing else.
        """
        if self._score == 1 or not self._attempts:
            return "The task is over."
        self._attempts -= 1
        self._score = self._task.score_answer(text.strip(), self._entry)
        return "Right." if self._score == 1 else f"Score {self._score:.2f} of 1."

    def reward(self) -> float:
        """Return the score of the last attempt."""
        return self._score
