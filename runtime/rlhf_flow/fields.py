"""The columns that batches have: names and meanings, in one place.

Shapes: `rows` is the number of samples, `response` the tokens of a row's response. A custom
operation may add fields of its own.
"""

from __future__ import annotations

PROMPT_TOKENS = "prompt_tokens"
PROMPT_ID = "prompt_id"
RECORD = "record"
RESPONSE_TOKENS = "response_tokens"
RESPONSE_TEXT = "response_text"
ROLLOUT_LOG_PROBS = "rollout_log_probs"
FINISHED = "finished"
SAMPLE_INDEX = "sample_index"
OLD_LOG_PROBS = "old_log_probs"
REFERENCE_LOG_PROBS = "reference_log_probs"
VALUES = "values"
SCORES = "scores"
SCORE_VALID = "score_valid"
TOKEN_REWARDS = "token_rewards"
ADVANTAGES = "advantages"
RETURNS = "returns"

PROMPT_FIELDS = frozenset({PROMPT_TOKENS, PROMPT_ID, RECORD})
"""What a step's prompts bring."""

ANSWER_FIELDS = PROMPT_FIELDS | {RESPONSE_TOKENS}
"""What a supervised step's rows bring: the response is the reference answer."""

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
    OLD_LOG_PROBS: "the policy's log-probabilities before the step's first update, "
    "as the training engine computes them, float32 [rows, ragged]",
    REFERENCE_LOG_PROBS: "the frozen reference's log-probabilities, float32 [rows, ragged]",
    VALUES: "the critic's value before each response token, float32 [rows, ragged]",
    SCORES: "weighted sum of the verifiers, float32 [rows]",
    SCORE_VALID: "whether every verifier answered, bool [rows]",
    TOKEN_REWARDS: "reward of each response token, float32 [rows, ragged]",
    ADVANTAGES: "advantage of each response token, float32 [rows, ragged]",
    RETURNS: "the critic's target for each response token, float32 [rows, ragged]",
}
