"""The columns that batches have: names, kinds and meanings, in one place.

Shapes: `rows` is the number of samples, `response` the tokens of a row's response. A custom
operation may add fields of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from rlhf_api.base import IDENTIFIER_PATTERN


class Kind(Enum):
    """What a field holds for each row, or for each token of a row's response."""

    TOKENS = "token ids"
    LOG_PROBS = "a log-probability per token"
    VALUES = "a value per token"
    REWARDS = "a reward per token"
    ADVANTAGES = "an advantage per token"
    RETURNS = "a return per token"
    MASK = "which response tokens count, per token"
    SCORES = "a score per row"
    MULTIPLIER = "a multiplier, the same in each row"
    TRUTH = "true or false per row"
    PREFERENCE = "which response of a pair was preferred, per row"
    TEXT = "a text per row"
    RECORD = "a record per row"
    IDENTITY = "a whole number that names a row or its prompt"


PER_TOKEN = frozenset(
    {
        *(Kind.LOG_PROBS, Kind.VALUES, Kind.REWARDS, Kind.ADVANTAGES, Kind.RETURNS),
        Kind.MASK,
    }
)
"""Kinds with a number for each token of a row's response."""

PER_ROW = frozenset({Kind.SCORES, Kind.MULTIPLIER, Kind.TRUTH, Kind.PREFERENCE, Kind.IDENTITY})
"""Kinds with a number for each row."""

MOST_NAME = 63
"""Characters of a name."""

ALLOWED_NAMES = f"letters of ASCII, digits and _, no digit first, at most {MOST_NAME}"


def is_name(text: object) -> bool:
    """Whether a field or a role may be named so: plans and metrics have such names only."""
    if not isinstance(text, str) or len(text) > MOST_NAME:
        return False
    return re.fullmatch(IDENTIFIER_PATTERN, text) is not None


PROMPT_TOKENS = "prompt_tokens"
PROMPT_ID = "prompt_id"
RECORD = "record"
RESPONSE_TOKENS = "response_tokens"
RESPONSE_TEXT = "response_text"
ROLLOUT_LOG_PROBS = "rollout_log_probs"
FINISHED = "finished"
SAMPLE_INDEX = "sample_index"
PREFERENCE = "preference"
TOKEN_REWARDS = "token_rewards"
ADVANTAGES = "advantages"
RETURNS = "returns"
RESPONSE_MASK = "response_mask"
"""Read wherever tokens count, of every batch that has it (`rlhf_flow.masks`)."""
ENOUGH = "enough"
"""By which the condition of `flow.repeat` answers."""
LINES = "lines"
"""What `flow.save` writes."""

PROMPT_FIELDS = frozenset({PROMPT_TOKENS, PROMPT_ID, RECORD})
"""What data of prompts bring."""

ANSWER_FIELDS = PROMPT_FIELDS | {RESPONSE_TOKENS}
"""What data with reference answers bring: the response is the answer."""

PAIR_FIELDS = ANSWER_FIELDS | {PREFERENCE}
"""What data of preference pairs bring: for every prompt a row with the chosen response, and one
with the rejected."""


PRETRAINING_FIELDS = frozenset({PROMPT_TOKENS, PROMPT_ID, RESPONSE_TOKENS})
"""What rows of data.pretraining bring: of a whole text the first token is the prompt."""


@dataclass(frozen=True)
class Field:
    """What a column holds."""

    kind: Kind
    """What operations and losses may take it for."""
    meaning: str
    """What it is, its number format and its shape."""


FIELDS = {
    PROMPT_TOKENS: Field(Kind.TOKENS, "token ids of the prompt, int32 [rows, ragged]"),
    PROMPT_ID: Field(
        Kind.IDENTITY,
        "identity of the prompt, equal for the samples of a group, int64 [rows]",
    ),
    RECORD: Field(Kind.RECORD, "the data row, as verifiers see it, one mapping per row"),
    RESPONSE_TOKENS: Field(
        Kind.TOKENS, "token ids of the response, its end token included, int32 [rows, ragged]"
    ),
    RESPONSE_TEXT: Field(Kind.TEXT, "the response, decoded"),
    ROLLOUT_LOG_PROBS: Field(
        Kind.LOG_PROBS,
        "log-probability of each sampled token at the sampling temperature, as the generation "
        "engine computed it, float32 [rows, ragged]",
    ),
    FINISHED: Field(Kind.TRUTH, "whether the response ended by itself, bool [rows]"),
    SAMPLE_INDEX: Field(Kind.IDENTITY, "number of the sample within its prompt, int32 [rows]"),
    PREFERENCE: Field(
        Kind.PREFERENCE,
        "1 for the chosen response to a prompt, -1 for a rejected one, 0 for one in no pair, int8 "
        "[rows]",
    ),
    TOKEN_REWARDS: Field(Kind.REWARDS, "reward of each response token, float32 [rows, ragged]"),
    ADVANTAGES: Field(Kind.ADVANTAGES, "advantage of each response token, float32 [rows, ragged]"),
    LINES: Field(
        Kind.TEXT, "what flow.save writes of the row: lines without the last one's end, or nothing"
    ),
    ENOUGH: Field(Kind.TRUTH, "whether flow.repeat has enough rows, the same in each, bool [rows]"),
    RETURNS: Field(
        Kind.RETURNS, "a critic's target for each response token, float32 [rows, ragged]"
    ),
    RESPONSE_MASK: Field(
        Kind.MASK,
        "1 for a response token of the policy's own, 0 for one that is not trained on, such as a "
        "tool's output, int8 [rows, ragged]; without it all are the policy's own",
    ),
}

_OF_ROLES = {
    "log_probs": Field(
        Kind.LOG_PROBS,
        "log-probability of each response token by the model of {role}, as the training engine "
        "computes it, float32 [rows, ragged]",
    ),
    "values": Field(
        Kind.VALUES,
        "the value that {role} gives before each response token, float32 [rows, ragged]",
    ),
    "scores": Field(
        Kind.SCORES,
        "weighted sum of the rewards of {role}, one of them, or what its model says, float32 "
        "[rows]",
    ),
    "valid": Field(
        Kind.TRUTH, "whether every verifier and service of {role} answered, bool [rows]"
    ),
}
"""What a role writes is named after it, so that two critics, or a reward and a cost, live side by
side."""


def log_probs_of(role: str) -> str:
    """The field with a language model's log-probabilities."""
    return f"{role}_log_probs"


def values_of(role: str) -> str:
    """The field with a critic's values."""
    return f"{role}_values"


def scores_of(role: str) -> str:
    """The field with a reward's scores."""
    return f"{role}_scores"


def term_scores_of(role: str, reward: str) -> str:
    """The field with the scores of one of several rewards of a role."""
    return scores_of(f"{role}_{reward}")


def valid_of(role: str) -> str:
    """The field that says which rows a reward could score."""
    return f"{role}_valid"


def role_of(field: str) -> str:
    """The role after which a field is named."""
    return next(
        (field.removesuffix(f"_{what}") for what in _OF_ROLES if field.endswith(f"_{what}")), field
    )


def field_of(name: str) -> Field | None:
    """What a field of this name holds. None: it is a custom operation's."""
    if name in FIELDS:
        return FIELDS[name]
    role = role_of(name)
    if role == name:
        return None
    found = _OF_ROLES[name.removeprefix(f"{role}_")]
    return replace(found, meaning=found.meaning.format(role=role))
