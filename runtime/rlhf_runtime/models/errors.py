"""Errors of models.

RlhfError
└── ModelError                 a model cannot be used as the manifest says (exit code 3)
    ├── ModelNotFound          no such folder, id or revision, or no access to it
    ├── ModelIncomplete        a folder with missing or unreadable parts of a model
    ├── ContextTooShort        a model with fewer positions than prompt and response need
    ├── WrongHead              a model with another output layer than its role needs
    └── VocabularyMismatch     roles that read the same token ids understand them differently
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class ModelError(RlhfError):
    """A model cannot be used as the manifest says; running again cannot help."""

    reason = "InvalidModel"
    exit_code = ExitCode.USER


class ModelNotFound(ModelError):
    """No such folder, Hugging Face id or revision, or no access to it."""

    reason = "ModelNotFound"


class ModelIncomplete(ModelError):
    """A folder with a missing or unreadable part of a model in Hugging Face format."""

    reason = "ModelIncomplete"


class ContextTooShort(ModelError):
    """A model with fewer positions than a prompt and a response together need."""

    reason = "ContextTooShort"


class WrongHead(ModelError):
    """A model with another output layer than its role needs."""

    reason = "WrongHead"


class VocabularyMismatch(ModelError):
    """Roles that read the same token ids understand them differently."""

    reason = "VocabularyMismatch"
