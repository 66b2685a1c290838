"""Tools that do not run in a conversation's process, such as those of a remote server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rlhf_runtime.environments.results import EpisodeKey
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_schema import ToolSchema


class ToolRaised(Exception):
    """A tool failed as tools do; the text is shown to the model."""


class SourceFailed(Exception):
    """A tool could not be called; the text says why. The sample is invalid."""


class ToolSource(Protocol):
    """Tools that are called from the owner's event loop.

    Their answers are written before they are used, and are never asked for again.
    """

    @property
    def title(self) -> str:
        """The source, for messages."""
        ...

    @property
    def schemas(self) -> Mapping[str, ToolSchema]:
        """Schemas of the tools by name, once `start` has returned."""
        ...

    async def start(self) -> None:
        """Make the tools callable. `close` must follow, also after an error.

        Raises:
            InvalidEnvironment: they cannot be used.
        """
        ...

    async def close(self) -> None:
        """End what the source has started."""
        ...

    async def call(self, key: EpisodeKey, call: ToolCall) -> str:
        """Call a tool.

        Args:
            key: of the conversation.
            call: name and arguments.

        Raises:
            ToolRaised: the model gets the text as the answer.
            ToolsChanged: the job ends.
            Exception: another error makes the sample invalid, as SourceFailed does.
        """
        ...
