"""A task of the package verifiers (0.4), scored by its own rewards."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

# `uv pip install --target packages verifiers` here: its requirements differ from those of vLLM, and
# only the processes of conversations import this module.
sys.path.insert(0, str(Path(__file__).parent / "packages"))

import verifiers.v1 as vf  # noqa: E402


class VerifiersTask:
    """Attempts at a task of an installed taskset whose rewards need a reply only, no container."""

    def __init__(self, *, taskset: str) -> None:
        self._taskset = vf.load_taskset(vf.TasksetConfig(id=taskset))
        self._score = 0.0

    def reset(self, task: int) -> str:
        """Take the task with the number of a row; its text is added to the prompt."""
        (self._task,) = islice(self._taskset, task, task + 1)
        return self._task.data.prompt_text

    async def answer(self, text: str) -> str:
        """Answer the task.

        Args:
            text: the complete reply.
        """
        trace = vf.Trace(
            task=vf.TraceTask(type=type(self._task).__name__, data=self._task.data),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
        )
        reply = vf.AssistantMessage(content=text)
        trace.nodes.append(vf.MessageNode(message=reply, sampled=True))
        await self._task.score(trace)
        self._score = trace.reward
        return f"Score {self._score:.2f}."

    def reward(self) -> float:
        """Return the score of the last answer."""
        return self._score
