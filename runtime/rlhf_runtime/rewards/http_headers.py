"""Headers of requests to a service, with values from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from rlhf_api.base import HEADER_VALUE_PATTERN
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards.errors import RewardError


def request_headers(reward: RewardSpec) -> dict[str, str]:
    """Return the headers of requests by name.

    Args:
        reward: by a service.

    Raises:
        RewardError: a variable is not set, or its value cannot be a header's.
    """
    assert reward.service is not None
    headers = {}
    for header in reward.service.headers:
        value = header.value
        if header.value_from_env is not None:
            value = os.environ.get(header.value_from_env, "").strip()
            # The value is secret: no message shows it.
            if not value or not re.fullmatch(HEADER_VALUE_PATTERN, value):
                kind = "a value with other characters" if value else "nothing"
                raise RewardError(
                    f"the environment has no value for the header {header.name} of the reward "
                    f"{reward.name}: got {kind} in {header.value_from_env}, allowed printable "
                    "ASCII characters; set the variable, on a cluster by spec.env"
                )
        headers[header.name] = f"{header.prefix}{value}"
    return headers


def secret_values(reward: RewardSpec) -> tuple[str, ...]:
    """Return the values of headers that come from the environment, the longest first."""
    assert reward.service is not None
    values = {os.environ.get(name, "").strip() for name in reward.service.variables}
    return tuple(sorted(filter(None, values), key=len, reverse=True))


def hide(text: str, secrets: Sequence[str]) -> str:
    """Replace secret values in a text."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
