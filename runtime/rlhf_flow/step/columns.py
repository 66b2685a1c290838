"""The columns of batches: names, kinds and meanings.

Shapes: `rows` is the number of samples, `ragged` the number of tokens of each row's response.
A custom operation may add columns of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from rlhf_api.base import IDENTIFIER_PATTERN


class Kind(Enum):
    """The meaning of a column's values, per row or per token of a row's response."""

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
    KEPT_TOKENS = "the tokens that truncated sampling kept, per token"


# Kinds with a number for each token of a row's response.
PER_TOKEN = frozenset(
    {
        *(Kind.LOG_PROBS, Kind.VALUES, Kind.REWARDS, Kind.ADVANTAGES, Kind.RETURNS),
        Kind.MASK,
    }
)

# Kinds with a number for each row.
PER_ROW = frozenset({Kind.SCORES, Kind.MULTIPLIER, Kind.TRUTH, Kind.PREFERENCE, Kind.IDENTITY})

# Characters of a name.
MAX_NAME_LENGTH = 63

ALLOWED_NAMES = f"letters of ASCII, digits and _, no digit first, at most {MAX_NAME_LENGTH}"


def is_name(text: object) -> bool:
    """True if a column or a role may have this name."""
    # Plans and metrics store names; their schema limits characters and length.
    if not isinstance(text, str) or len(text) > MAX_NAME_LENGTH:
        return False
    return re.fullmatch(IDENTIFIER_PATTERN, text) is not None


PROMPT_TOKENS = "prompt_tokens"
PROMPT_ID = "prompt_id"
RECORD = "record"
RESPONSE_TOKENS = "response_tokens"
RESPONSE_TEXT = "response_text"
ROLLOUT_LOG_PROBS = "rollout_log_probs"
# Read implicitly wherever log-probabilities are those of sampling, if the batch has it.
KEPT_TOKENS = "kept_tokens"
FINISHED = "finished"
STOP_REASON = "stop_reason"
# Written if rollout.onStop masks responses, or leaves them out.
UNMASKED = "unmasked"
RETAINED = "retained"
# The turns and rewards of conversations, and the rewards of their turns.
EPISODE = "episode"
TURN_REWARDS = "turn_rewards"
SAMPLE_INDEX = "sample_index"
PREFERENCE = "preference"
TOKEN_REWARDS = "token_rewards"
ADVANTAGES = "advantages"
RETURNS = "returns"
# Read implicitly wherever tokens count, if the batch has it (`column_inputs`).
RESPONSE_MASK = "response_mask"
# The answer of the condition of `flow.repeat`.
ENOUGH = "enough"
# The lines that `flow.save` writes.
LINES = "lines"

# Columns of a data set of prompts.
PROMPT_COLUMNS = frozenset({PROMPT_TOKENS, PROMPT_ID, RECORD})

# Columns of data with reference answers: the response is the answer.
ANSWER_COLUMNS = PROMPT_COLUMNS | {RESPONSE_TOKENS}

# Columns of preference pairs: each prompt has one row with the chosen response and one with the
# rejected.
PAIR_COLUMNS = ANSWER_COLUMNS | {PREFERENCE}


# Columns of data.pretraining. The prompt of a complete text is its first token.
PRETRAINING_COLUMNS = frozenset({PROMPT_TOKENS, PROMPT_ID, RESPONSE_TOKENS})


@dataclass(frozen=True)
class ColumnSpec:
    """Kind and meaning of a column."""

    kind: Kind
    """The kind that operations and losses check."""
    meaning: str
    """Meaning, number format and shape."""


COLUMNS = {
    PROMPT_TOKENS: ColumnSpec(Kind.TOKENS, "token ids of the prompt, int32 [rows, ragged]"),
    PROMPT_ID: ColumnSpec(
        Kind.IDENTITY,
        "identity of the prompt, equal for the samples of a group, int64 [rows]",
    ),
    RECORD: ColumnSpec(Kind.RECORD, "the data row, as verifiers see it, one mapping per row"),
    RESPONSE_TOKENS: ColumnSpec(
        Kind.TOKENS, "token ids of the response, its end token included, int32 [rows, ragged]"
    ),
    RESPONSE_TEXT: ColumnSpec(Kind.TEXT, "the response, decoded"),
    ROLLOUT_LOG_PROBS: ColumnSpec(
        Kind.LOG_PROBS,
        "log-probability of each sampled token at the sampling temperature, as the generation "
        "engine computed it, float32 [rows, ragged]",
    ),
    KEPT_TOKENS: ColumnSpec(
        Kind.KEPT_TOKENS,
        "the tokens that truncated sampling kept for each sampled token, encoded, int32 [rows, "
        "ragged]; only with topP, topK or minP",
    ),
    FINISHED: ColumnSpec(
        Kind.TRUTH, "whether the response ended by itself: no limit cut it off, bool [rows]"
    ),
    STOP_REASON: ColumnSpec(
        Kind.TEXT, "reason for the end of the response, such as EndToken: a key of rollout.onStop"
    ),
    UNMASKED: ColumnSpec(
        Kind.TRUTH, "whether losses count the response: its stop reason is not masked, bool [rows]"
    ),
    RETAINED: ColumnSpec(
        Kind.TRUTH,
        "whether the response's score counts: its stop reason is not left out, bool [rows]",
    ),
    EPISODE: ColumnSpec(
        Kind.RECORD,
        "the turns of a conversation and what its environment says, one mapping per row; only with "
        "rollout.environment",
    ),
    TURN_REWARDS: ColumnSpec(
        Kind.REWARDS,
        "the environment's reward of each turn on the turn's last token, 0 on all others, float32 "
        "[rows, ragged]; only with rollout.environment",
    ),
    SAMPLE_INDEX: ColumnSpec(Kind.IDENTITY, "number of the sample within its prompt, int32 [rows]"),
    PREFERENCE: ColumnSpec(
        Kind.PREFERENCE,
        "1 for the chosen response to a prompt, -1 for a rejected one, 0 for one in no pair, int8 "
        "[rows]",
    ),
    TOKEN_REWARDS: ColumnSpec(
        Kind.REWARDS, "reward of each response token, float32 [rows, ragged]"
    ),
    ADVANTAGES: ColumnSpec(
        Kind.ADVANTAGES, "advantage of each response token, float32 [rows, ragged]"
    ),
    LINES: ColumnSpec(
        Kind.TEXT, "what flow.save writes of the row: lines without the last one's end, or nothing"
    ),
    ENOUGH: ColumnSpec(
        Kind.TRUTH, "whether flow.repeat has enough rows, the same in each, bool [rows]"
    ),
    RETURNS: ColumnSpec(
        Kind.RETURNS, "a critic's target for each response token, float32 [rows, ragged]"
    ),
    RESPONSE_MASK: ColumnSpec(
        Kind.MASK,
        "1 for a response token of the policy's own, or of an answer of the data; 0 for one that "
        "is not trained on, such as a tool's output or a message between answers, int8 [rows, "
        "ragged]; without it all are 1",
    ),
}

# The columns of a role are named after it, so that two critics, or a reward and a cost, can be in
# one batch.
_ROLE_COLUMNS = {
    "log_probs": ColumnSpec(
        Kind.LOG_PROBS,
        "log-probability of each response token by the model of {role}, as the training engine "
        "computes it, float32 [rows, ragged]",
    ),
    "values": ColumnSpec(
        Kind.VALUES,
        "the value that {role} gives before each response token, float32 [rows, ragged]",
    ),
    "scores": ColumnSpec(
        Kind.SCORES,
        "weighted sum of the rewards of {role}, one of them, or what its model says, float32 "
        "[rows]",
    ),
    "valid": ColumnSpec(
        Kind.TRUTH, "whether every verifier and service of {role} answered, bool [rows]"
    ),
}


def log_probs_column(role: str) -> str:
    """The column of a language model's log-probabilities."""
    return f"{role}_log_probs"


def values_column(role: str) -> str:
    """The column of a critic's values."""
    return f"{role}_values"


def scores_column(role: str) -> str:
    """The column of a reward's scores."""
    return f"{role}_scores"


def term_scores_column(role: str, reward: str) -> str:
    """The column of one reward's scores, where a role has several rewards."""
    return scores_column(f"{role}_{reward}")


def valid_column(role: str) -> str:
    """The column that is true for the rows that a reward could score."""
    return f"{role}_valid"


def column_role(column: str) -> str:
    """The role after which a column is named; the column itself if it is named after none."""
    return next(
        (column.removesuffix(f"_{end}") for end in _ROLE_COLUMNS if column.endswith(f"_{end}")),
        column,
    )


def column_spec(name: str) -> ColumnSpec | None:
    """Kind and meaning of a column by its name. None: only a custom operation writes it."""
    if name in COLUMNS:
        return COLUMNS[name]
    role = column_role(name)
    if role == name:
        return None
    spec = _ROLE_COLUMNS[name.removeprefix(f"{role}_")]
    return replace(spec, meaning=spec.meaning.format(role=role))
