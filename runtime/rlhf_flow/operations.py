"""Pure numerics that `flow.compute` runs on the actor's ranks: names, fields and parameters.

Data only. The runtime maps each name to its function; a user's own operation names its function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_api.algorithm import KlEstimator
from rlhf_flow import fields
from rlhf_flow.errors import FlowError

Parameter = bool | int | float | str


@dataclass(frozen=True)
class Operation:
    """One named computation on the columns of a batch.

    Groups of samples of the same prompt never straddle ranks; moments over the batch are reduced
    over all ranks.
    """

    name: str
    """`custom` or one of the built-in operations."""
    reads: tuple[str, ...]
    """Fields it needs."""
    writes: tuple[str, ...]
    """Fields it gives; they may replace fields that it reads."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Keyword arguments of its function."""
    entrypoint: str | None = None
    """The user's function as `package.module:name`; None for built-in operations."""


def token_rewards(
    kl_coefficient: float = 0.0,
    kl_estimator: KlEstimator = KlEstimator.K1,
    policy_log_probs: str = fields.ROLLOUT_LOG_PROBS,
) -> Operation:
    """The score on the last response token minus klCoefficient x KL on every token.

    Args:
        kl_coefficient: weight of the penalty; 0 reads no log-probabilities.
        kl_estimator: which estimator of KL(policy, reference).
        policy_log_probs: the field with the policy's log-probabilities.
    """
    compared = (policy_log_probs, fields.REFERENCE_LOG_PROBS) if kl_coefficient > 0 else ()
    return Operation(
        "token_rewards",
        reads=(fields.SCORES, fields.RESPONSE_TOKENS, *compared),
        writes=(fields.TOKEN_REWARDS,),
        parameters={
            "kl_coefficient": kl_coefficient,
            "kl_estimator": kl_estimator.value,
            "policy_log_probs": policy_log_probs,
        },
    )


def gae(gamma: float, lam: float) -> Operation:
    """Generalized advantage estimation; returns = advantages + values. It does not whiten.

    Source: Schulman et al., High-dimensional continuous control using GAE, section 3.
    """
    return Operation(
        "gae",
        reads=(fields.TOKEN_REWARDS, fields.VALUES),
        writes=(fields.ADVANTAGES, fields.RETURNS),
        parameters={"gamma": gamma, "lam": lam},
    )


def whiten() -> Operation:
    """Advantages shifted to mean 0 and scaled to variance 1 over the tokens of valid rows."""
    return Operation(
        "whiten",
        reads=(fields.ADVANTAGES, fields.SCORE_VALID),
        writes=(fields.ADVANTAGES,),
    )


def group_advantages(normalize_by_std: bool = True) -> Operation:
    """Scores relative to the valid samples of the same prompt, spread over the response's tokens.

    Source: DeepSeekMath, section 4.1; without the standard deviation Dr.GRPO.
    """
    return Operation(
        "group_advantages",
        reads=(fields.SCORES, fields.PROMPT_ID, fields.SCORE_VALID, fields.RESPONSE_TOKENS),
        writes=(fields.ADVANTAGES,),
        parameters={"normalize_by_std": normalize_by_std},
    )


def custom(
    entrypoint: str,
    reads: Sequence[str],
    writes: Sequence[str],
    parameters: Mapping[str, Parameter] | None = None,
) -> Operation:
    """A function of the user's own, as `package.module:name`.

    Raises:
        FlowError: the entry point has another form, or a list of names is a single string.
    """
    module, colon, name = entrypoint.partition(":")
    if not (module and colon and name.isidentifier()):
        raise FlowError(
            f"an operation's entry point names no function: got {entrypoint!r}, "
            "allowed package.module:function; write it so"
        )
    for label, names in (("reads", reads), ("writes", writes)):
        if isinstance(names, str):
            raise FlowError(
                f"{label} of the operation {entrypoint} is a text: got {names!r}, "
                f"allowed a list of field names; write [{names!r}]"
            )
    return Operation("custom", tuple(reads), tuple(writes), dict(parameters or {}), entrypoint)


BUILT_IN_OPERATIONS: Mapping[str, Operation] = {
    "token_rewards": token_rewards(),
    "gae": gae(1.0, 1.0),
    "whiten": whiten(),
    "group_advantages": group_advantages(),
}
"""By name, for messages that say where a field comes from."""
