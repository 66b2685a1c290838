"""Headers of requests to a service, with values from the environment."""

from __future__ import annotations

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.secret_headers import HeaderUnusable, header_value


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
        value, variable = header.value, header.value_from_env
        if variable is not None:
            try:
                value = header_value(header.name, variable, f"the reward {reward.name}")
            except HeaderUnusable as error:
                raise RewardError(str(error)) from None
        headers[header.name] = f"{header.prefix}{value}"
    return headers
