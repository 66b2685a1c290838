"""What each kind of role can do: the table behind `flow.<role>.<primitive>`.

To add a primitive add a row here, its execution in the runtime, and a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.plan import CallKind, RoleKind
from rlhf_flow import fields
from rlhf_flow.calls import Option
from rlhf_flow.errors import FlowError
from rlhf_flow.losses import ClippedLoss, CrossEntropy, Loss, ValueLoss

Options = Mapping[str, Option]
FieldsOf = Callable[[str, Options], tuple[str, ...]]
"""Fields as a function of the role's name and the call's options."""


@dataclass(frozen=True)
class OptionRule:
    """An option of a primitive."""

    default: Option
    """What holds when it is left out."""
    allowed: str
    """What may be given, in words."""
    accepts: Callable[[object], bool]
    """Whether a value is allowed."""


@dataclass(frozen=True)
class Primitive:
    """A row of the table."""

    method: str
    """Its name."""
    kind: CallKind
    """What it does."""
    reads: FieldsOf
    """Fields it needs."""
    writes: FieldsOf
    """Fields it makes."""
    options: Mapping[str, OptionRule]
    """Options by name."""
    losses: tuple[type[Loss], ...] = ()
    """Kinds of losses of which it is given one. Empty: it does not train."""


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _constant(*names: str) -> FieldsOf:
    return lambda role, options: names


def _of_role(*names: Callable[[str], str]) -> FieldsOf:
    return lambda role, options: tuple(name(role) for name in names)


_SWITCH = OptionRule(False, "true or false", lambda value: isinstance(value, bool))
_SAMPLES = OptionRule(
    None,
    "a number of at least 1, or None for rollout.samplesPerPrompt",
    lambda value: value is None or _is_whole(value, 1),
)
_TEMPERATURE = OptionRule(
    None,
    "a number above 0, or None for rollout.temperature (greedy=True for greedy answers)",
    lambda value: value is None or _is_positive(value),
)
_FROM_STEP = OptionRule(0, "a step number of at least 0", lambda value: _is_whole(value, 0))


def _loss_reads(role: str, options: Options) -> tuple[str, ...]:
    """What the loss reads; nothing while none is given."""
    loss = options.get("loss")
    return loss.reads if isinstance(loss, Loss) else ()


_SEQUENCES = _constant(fields.PROMPT_TOKENS, fields.RESPONSE_TOKENS)
_NOTHING = _constant()

_POLICY = (
    Primitive(
        "generate",
        CallKind.GENERATE,
        reads=_constant(*sorted(fields.PROMPT_FIELDS)),
        writes=_constant(
            fields.RESPONSE_TOKENS,
            fields.RESPONSE_TEXT,
            fields.ROLLOUT_LOG_PROBS,
            fields.FINISHED,
            fields.SAMPLE_INDEX,
        ),
        options={"samples": _SAMPLES, "temperature": _TEMPERATURE, "greedy": _SWITCH},
    ),
    Primitive(
        "log_probs",
        CallKind.INFER,
        reads=_SEQUENCES,
        writes=_of_role(fields.log_probs_of),
        options={},
    ),
    Primitive(
        "train",
        CallKind.TRAIN,
        reads=_loss_reads,
        writes=_NOTHING,
        options={"from_step": _FROM_STEP},
        losses=(ClippedLoss, CrossEntropy),
    ),
)

_FROZEN_POLICY = (
    Primitive(
        "log_probs",
        CallKind.INFER,
        reads=_SEQUENCES,
        writes=_of_role(fields.log_probs_of),
        options={},
    ),
)

_CRITIC = (
    Primitive(
        "values",
        CallKind.INFER,
        reads=_SEQUENCES,
        writes=_of_role(fields.values_of),
        options={},
    ),
    Primitive(
        "train",
        CallKind.TRAIN,
        reads=_loss_reads,
        writes=_NOTHING,
        options={"from_step": _FROM_STEP},
        losses=(ValueLoss,),
    ),
)

_REWARD = (
    Primitive(
        "score",
        CallKind.SCORE,
        reads=_constant(fields.RESPONSE_TEXT, fields.RECORD, fields.PROMPT_ID, fields.FINISHED),
        writes=_of_role(fields.scores_of, fields.valid_of),
        options={},
    ),
)

PRIMITIVES: Mapping[RoleKind, Mapping[str, Primitive]] = {
    RoleKind.POLICY: {row.method: row for row in _POLICY},
    RoleKind.FROZEN_POLICY: {row.method: row for row in _FROZEN_POLICY},
    RoleKind.CRITIC: {row.method: row for row in _CRITIC},
    RoleKind.REWARD: {row.method: row for row in _REWARD},
}
"""Kind of role, then method."""


def loss_option(site: str, primitive: Primitive, given: Sequence[object]) -> dict[str, Option]:
    """The loss among a call's options, where the primitive trains.

    Raises:
        FlowError: there is none, more than one, or one that cannot train the role.
    """
    if not primitive.losses and not given:
        return {}
    if len(given) == 1 and isinstance(given[0], primitive.losses):
        return {"loss": given[0]}
    got = ", ".join(map(repr, given)) or "none"
    allowed = " or ".join(f"{each.__name__}(...)" for each in primitive.losses) or "none"
    raise FlowError(
        f"{site} needs one loss after the batch: got {got}, allowed {allowed}; correct it"
        if primitive.losses
        else f"{site} takes nothing but a batch and options: got {got}; remove it"
    )


def fill_options(site: str, primitive: Primitive, given: Mapping[str, object]) -> dict[str, Option]:
    """All options of a call, the defaults filled in.

    Raises:
        FlowError: an option that the primitive does not have, or a value that it does not allow.
    """
    unknown = sorted(set(given) - set(primitive.options))
    if unknown:
        allowed = ", ".join(sorted(primitive.options)) or "none"
        raise FlowError(
            f"{site} has no option {unknown[0]}: got {unknown[0]}={given[unknown[0]]!r}, "
            f"allowed {allowed}; remove it"
        )
    filled = {name: rule.default for name, rule in primitive.options.items()}
    for name, value in given.items():
        rule = primitive.options[name]
        if not rule.accepts(value) or not isinstance(value, bool | int | float | str | None):
            raise FlowError(
                f"{site} cannot take this option: got {name}={value!r}, allowed {rule.allowed}; "
                "change it"
            )
        filled[name] = value
    return filled
