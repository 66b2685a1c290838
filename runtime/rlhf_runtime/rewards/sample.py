"""What a verifier sees of one response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to one prompt.

    prompt: the prompt as the model read it, chat template included.
    response: what the model answered, without the end token.
    record: the row of the data that the prompt came from, with all its fields.
    finished: whether the response ended by itself instead of being cut at maxResponseTokens.
    """

    prompt: str
    response: str
    record: Mapping[str, Any]
    finished: bool
