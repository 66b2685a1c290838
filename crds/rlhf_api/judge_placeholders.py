"""Placeholders in a judge's question, which stand for parts of a sample."""

from __future__ import annotations

import re

RESPONSE_PLACEHOLDER = "{response}"

# A brace that is written twice, an entry of the row, or a name.
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{record\.(?P<entry>[^{}]+)\}|\{(?P<name>[A-Za-z_]\w*)\}")
_NAMES = ("prompt", "response")


def unknown_placeholders(question: str) -> list[str]:
    """Return the placeholders that name no part of a sample."""
    matches = PLACEHOLDER.finditer(question)
    return [match[0] for match in matches if match["name"] not in (None, *_NAMES)]
