"""Headers of requests whose values come from environment variables. The values are secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from rlhf_api.base import HEADER_VALUE_PATTERN


class HeaderUnusable(Exception):
    """A header has no value that can be sent; the text says why."""


def header_value(name: str, variable: str, user: str) -> str:
    """Return the value of a header.

    Args:
        name: of the header.
        variable: the environment variable with its value.
        user: description of what sends the header, such as "the reward judge".

    Raises:
        HeaderUnusable: the variable is not set, or its value cannot be a header's.
    """
    value = os.environ.get(variable, "").strip()
    if not value or not re.fullmatch(HEADER_VALUE_PATTERN, value):
        kind = "a value with other characters" if value else "nothing"
        raise HeaderUnusable(
            f"the environment has no value for the header {name} of {user}: got {kind} in "
            f"{variable}, allowed printable ASCII characters; set the variable, on a cluster by "
            "spec.env"
        )
    return value


def secret_values(variables: Iterable[str]) -> tuple[str, ...]:
    """Return the values of environment variables that are set, the longest first."""
    values = {os.environ.get(name, "").strip() for name in variables}
    return tuple(sorted(filter(None, values), key=len, reverse=True))


def hide(text: str, secrets: Sequence[str]) -> str:
    """Replace secret values in a text.

    Args:
        text: for messages and logs.
        secrets: by `secret_values`.
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
