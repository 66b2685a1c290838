"""Pure numerics that `flow.compute` runs on the actor's ranks: names, fields and parameters.

Data only. The runtime maps each name to its function; a user's own operation names its function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_api.spec.algorithm import KlEstimator
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
    scores: str,
    kl_coefficient: float = 0.0,
    kl_estimator: KlEstimator = KlEstimator.K1,
    policy_log_probs: str = fields.ROLLOUT_LOG_PROBS,
    reference_log_probs: str | None = None,
    rewards: str = fields.TOKEN_REWARDS,
) -> Operation:
    """The score on the last response token minus klCoefficient x KL on every token.

    Args:
        scores: the field with the scores, such as reward_scores.
        kl_coefficient: weight of the penalty; 0 reads no log-probabilities.
        kl_estimator: which estimator of KL(policy, reference).
        policy_log_probs: the field with the policy's log-probabilities.
        reference_log_probs: the field with the reference's; needed for a penalty.
        rewards: the field that it writes.

    Raises:
        FlowError: a penalty without a reference.
    """
    parameters: dict[str, Parameter] = {
        "scores": scores,
        "kl_coefficient": kl_coefficient,
        "rewards": rewards,
    }
    reads: tuple[str, ...] = (scores, fields.RESPONSE_TOKENS)
    if kl_coefficient > 0:
        reference = need_reference("token_rewards", reference_log_probs)
        reads += (policy_log_probs, reference)
        parameters |= {
            "kl_estimator": kl_estimator.value,
            "policy_log_probs": policy_log_probs,
            "reference_log_probs": reference,
        }
    return Operation("token_rewards", reads, (rewards,), parameters)


def gae(
    gamma: float,
    lam: float,
    *,
    values: str,
    rewards: str = fields.TOKEN_REWARDS,
    advantages: str = fields.ADVANTAGES,
    returns: str = fields.RETURNS,
) -> Operation:
    """Generalized advantage estimation; returns = advantages + values. It does not whiten.

    Args:
        gamma: discount per token.
        lam: bias-variance trade-off.
        values: the field with a critic's values, such as critic_values.
        rewards: the field with every token's reward.
        advantages: the field for them.
        returns: the field for the critic's targets.

    Source: Schulman et al., High-dimensional continuous control using GAE, section 3.
    """
    return Operation(
        "gae",
        reads=(rewards, values),
        writes=(advantages, returns),
        parameters={
            "gamma": gamma,
            "lam": lam,
            "values": values,
            "rewards": rewards,
            "advantages": advantages,
            "returns": returns,
        },
    )


def whiten(valid: str, advantages: str = fields.ADVANTAGES) -> Operation:
    """Advantages shifted to mean 0 and scaled to variance 1 over the tokens of valid rows.

    Args:
        valid: the field that says which rows are, such as reward_valid.
        advantages: the field that it replaces.
    """
    return Operation(
        "whiten",
        reads=(advantages, valid),
        writes=(advantages,),
        parameters={"valid": valid, "advantages": advantages},
    )


def group_advantages(scores: str, valid: str, normalize_by_std: bool = True) -> Operation:
    """Scores relative to the valid samples of the same prompt, spread over the response's tokens.

    Args:
        scores: the field with the scores, such as reward_scores.
        valid: the field that says which rows have one, such as reward_valid.
        normalize_by_std: whether they are divided by the group's standard deviation.

    Source: DeepSeekMath, section 4.1; without the standard deviation Dr.GRPO.
    """
    return Operation(
        "group_advantages",
        reads=(scores, fields.PROMPT_ID, valid, fields.RESPONSE_TOKENS),
        writes=(fields.ADVANTAGES,),
        parameters={"scores": scores, "valid": valid, "normalize_by_std": normalize_by_std},
    )


def need_reference(what: str, reference_log_probs: str | None) -> str:
    """The field with the reference's log-probabilities.

    Raises:
        FlowError: none is named.
    """
    if reference_log_probs is None:
        raise FlowError(
            f"{what} has a KL penalty against nobody: got no reference_log_probs, allowed the "
            "field of a frozen role, such as reference_log_probs; name it"
        )
    return reference_log_probs


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
        if odd := [each for each in names if not fields.is_name(each)]:
            raise FlowError(
                f"{label} of the operation {entrypoint} has a name that no field may have: got "
                f"{odd[0]!r}, allowed {fields.ALLOWED_NAMES}; rename it"
            )
    return Operation("custom", tuple(reads), tuple(writes), dict(parameters or {}), entrypoint)


BUILT_IN_OPERATIONS: Mapping[str, Operation] = {
    "token_rewards": token_rewards("reward_scores"),
    "gae": gae(1.0, 1.0, values="critic_values"),
    "whiten": whiten("reward_valid"),
    "group_advantages": group_advantages("reward_scores", "reward_valid"),
}
"""By name, for messages that say where a field comes from."""
