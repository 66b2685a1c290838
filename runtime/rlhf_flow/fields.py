"""The columns that batches have: names and meanings, in one place.

Shapes: `rows` is the number of samples, `response` the tokens of a row's response. A custom
operation may add fields of its own.
"""

from __future__ import annotations

import re

from rlhf_api.base import IDENTIFIER_PATTERN

MOST_NAME = 63
"""Characters of a name."""

ALLOWED_NAMES = f"letters of ASCII, digits and _, no digit first, at most {MOST_NAME}"


def is_name(text: str) -> bool:
    """Whether a field or a role may be named so: plans and metrics have such names only."""
    return len(text) <= MOST_NAME and re.fullmatch(IDENTIFIER_PATTERN, text) is not None


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

PROMPT_FIELDS = frozenset({PROMPT_TOKENS, PROMPT_ID, RECORD})
"""What data of prompts bring."""

ANSWER_FIELDS = PROMPT_FIELDS | {RESPONSE_TOKENS}
"""What data with reference answers bring: the response is the answer."""

PAIR_FIELDS = ANSWER_FIELDS | {PREFERENCE}
"""What data of preference pairs bring: for every prompt a row with the chosen response, and one
with the rejected."""

MEANINGS = {
    PROMPT_TOKENS: "token ids of the prompt, int32 [rows, ragged]",
    PROMPT_ID: "identity of the prompt, equal for the samples of a group, int64 [rows]",
    RECORD: "the data row, as verifiers see it, one mapping per row",
    RESPONSE_TOKENS: "token ids of the response, its end token included, int32 [rows, ragged]",
    RESPONSE_TEXT: "the response, decoded",
    ROLLOUT_LOG_PROBS: "log-probability of each sampled token at the sampling temperature, "
    "as the generation engine computed it, float32 [rows, ragged]",
    FINISHED: "whether the response ended by itself, bool [rows]",
    SAMPLE_INDEX: "number of the sample within its prompt, int32 [rows]",
    PREFERENCE: "1 for the chosen response to a prompt, -1 for a rejected one, int8 [rows]",
    TOKEN_REWARDS: "reward of each response token, float32 [rows, ragged]",
    ADVANTAGES: "advantage of each response token, float32 [rows, ragged]",
    RETURNS: "a critic's target for each response token, float32 [rows, ragged]",
}

_OF_ROLES = {
    "log_probs": "log-probability of each response token by the model of {role}, as the training "
    "engine computes it, float32 [rows, ragged]",
    "values": "the value that {role} gives before each response token, float32 [rows, ragged]",
    "scores": "weighted sum of the verifiers of {role}, float32 [rows]",
    "valid": "whether every verifier of {role} answered, bool [rows]",
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


def valid_of(role: str) -> str:
    """The field that says which rows a reward could score."""
    return f"{role}_valid"


def role_of(field: str) -> str:
    """The role after which a field is named."""
    return next(
        (field.removesuffix(f"_{what}") for what in _OF_ROLES if field.endswith(f"_{what}")), field
    )


def meaning_of(field: str) -> str | None:
    """What a field holds. None: it is a custom operation's."""
    role = role_of(field)
    what = field.removeprefix(f"{role}_")
    return _OF_ROLES[what].format(role=role) if what in _OF_ROLES else MEANINGS.get(field)
