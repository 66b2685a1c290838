"""Errors of data and tokenizers.

RlhfError
└── DataError                  the user's data is wrong (exit code 3)
    ├── DataNotFound           no such file, dataset, configuration or split
    ├── DataUnreadable         the file has another format than its name says, or cannot be read
    ├── EmptyDataset           no rows at all
    ├── MissingField           a column that the manifest names does not exist
    ├── InvalidRow             unusable rows, with onInvalidRow: Fail
    ├── PromptTooLong          prompts over the limit, with onLongPrompt: Fail
    ├── DatasetTooSmall        fewer usable rows than a step needs
    ├── SourceUnused           a source whose weight gives it no row of any step
    ├── MissingAnswer          a warm start over rows without reference answers
    ├── TokenizerUnusable      a model folder without a usable tokenizer
    ├── ChatTemplateUnusable   a chat template is needed and missing, or broken
    └── ToolsUnusable          schemas of tools that no model can call
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class DataError(RlhfError):
    """The user's data or its description is wrong; running again cannot help."""

    reason = "InvalidData"
    exit_code = ExitCode.USER


class DataNotFound(DataError):
    """No such file, dataset, configuration or split."""

    reason = "DataNotFound"


class DataUnreadable(DataError):
    """A file that has another format than its name says, or that cannot be read."""

    reason = "DataUnreadable"


class EmptyDataset(DataError):
    """A source without any row."""

    reason = "EmptyDataset"


class MissingField(DataError):
    """A column that the manifest names does not exist in the data."""

    reason = "MissingField"


class InvalidRow(DataError):
    """Unusable rows while data.onInvalidRow is Fail."""

    reason = "InvalidRow"


class PromptTooLong(DataError):
    """Prompts over rollout.maxPromptTokens while data.onLongPrompt is Fail."""

    reason = "PromptTooLong"


class DatasetTooSmall(DataError):
    """Fewer usable rows than prompts in a step."""

    reason = "DatasetTooSmall"


class SourceUnused(DataError):
    """A training source whose weight gives it no row of any step."""

    reason = "SourceUnused"


class MissingAnswer(DataError):
    """A warm start needs reference answers that the rows do not have."""

    reason = "MissingAnswer"


class TokenizerUnusable(DataError):
    """A model folder without a tokenizer that can be loaded."""

    reason = "TokenizerUnusable"


class ChatTemplateUnusable(DataError):
    """A chat template is needed but missing, or it is broken."""

    reason = "ChatTemplateUnusable"


class ToolsUnusable(DataError):
    """Schemas of tools that no model can call: no tool, a clash of names, another form."""

    reason = "ToolsUnusable"
