"""Truncated sampling by an engine: its sets of kept tokens, and its log-probabilities over them.

The oracle is Hugging Face's model, with the sets by their definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from rlhf_api.spec.truncation import Truncation
from rlhf_runtime.dataplane.columns import Column, concatenate, pack, repeat_rows
from rlhf_runtime.engines.kept_tokens import KeptTokens, join_sets
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.response_batch import Generated, Sampling
from rlhf_runtime.engines.training import ReadLogProbs, TokenOutputs

from ..kept_sets import masked_softmax
from .tiny_models import VOCABULARY

if TYPE_CHECKING:
    from .vllm_ranks import Pair

TRUNCATIONS = (
    Truncation(top_p=0.6),
    Truncation(top_k=7),
    Truncation(min_p=0.2),
    Truncation(top_p=0.9, top_k=40, min_p=0.01),
    Truncation(top_k=VOCABULARY + 1),  # leaves nothing out
)
ONE_TOKEN = Truncation(top_k=1)
"""As good as greedy."""
TEMPERATURE = 0.7
BORDER = 1e-4
"""Tokens may be in or out whose probabilities, or sums of them, are so near to a limit."""
SAMPLES = 3


def log_probs_are_those_of_the_kept_tokens(at: Pair) -> None:
    """In the engine, in the trainer, and by Hugging Face."""
    prompts = repeat_rows(at.prompts(), SAMPLES)
    sizes = set()
    for truncation in TRUNCATIONS:
        got = sample(at, prompts, truncation)
        mask = dense(got)
        sizes |= set(mask.sum(dim=1).tolist())
        assert_is_right(at, prompts, got, truncation)
        trainer = trainer_log_probs(at, prompts, got)
        assert (trainer - torch.tensor(got.log_probs.values)).abs().max() < 1e-4
    assert max(sizes) > VOCABULARY // 32 + 1 > 1 in sizes, "sets of both forms"


def one_kept_token_is_the_greedy_one(at: Pair) -> None:
    prompts = at.prompts()
    greedy, got = at.generate(prompts, 0.0), sample(at, prompts, ONE_TOKEN)
    assert greedy.kept_tokens is None
    assert got.tokens.values.tolist() == greedy.tokens.values.tolist()
    assert not got.log_probs.values.any(), "a probability of 1"
    assert (dense(got).sum(dim=1) == 1).all()


def sampling_of_all_tokens_records_nothing(at: Pair) -> None:
    """The same engine samples as one that never truncates: of 1 and 0 nothing is left out."""
    prompts = at.prompts()
    for truncation in (Truncation(), Truncation(top_p=1.0, min_p=0.0)):
        assert not truncation.is_active
        got = at.sample(prompts, Sampling(1.0, seeds(prompts), truncation))
        assert got.kept_tokens is None
        plain = at.generate(prompts, 1.0)
        assert got.tokens.values.tolist() == plain.tokens.values.tolist()
        assert got.log_probs.values.tolist() == plain.log_probs.values.tolist()


def sets_follow_responses_to_another_engine(at: Pair) -> None:
    """The rest of a response is sampled from its prompt and its tokens so far."""
    prompts, truncation = at.prompts(), TRUNCATIONS[0]
    sampling = Sampling(TEMPERATURE, seeds(prompts), truncation, records_kept_tokens=True)
    begun = at.start(prompts, sampling)
    begun.run_until(lambda running: True)
    left = np.flatnonzero(~begun.has_ended)
    assert len(left)
    begun.abort()
    first = begun.generated(left)
    runs = zip(prompts.take(left).runs(), first.tokens.runs(), strict=True)
    rest = sample(at, pack([np.concatenate(pair) for pair in runs], np.int32), truncation)
    assert first.kept_tokens is not None and rest.kept_tokens is not None
    assert first.tokens.lengths is not None and rest.tokens.lengths is not None
    sets = join_sets(first.kept_tokens, first.tokens.lengths, rest.kept_tokens, rest.tokens.lengths)
    whole = Generated(
        joined(first.tokens, rest.tokens),
        joined(first.log_probs, rest.log_probs),
        rest.reasons,
        sets,
    )
    assert_is_right(at, prompts.take(left), whole, truncation)


def sample(at: Pair, prompts: Column, truncation: Truncation) -> Generated:
    return at.sample(
        prompts, Sampling(TEMPERATURE, seeds(prompts), truncation, records_kept_tokens=True)
    )


def seeds(prompts: Column) -> list[int]:
    return list(range(prompts.num_rows))


def joined(first: Column, rest: Column) -> Column:
    pairs = zip(first.runs(), rest.runs(), strict=True)
    return concatenate([pack([np.concatenate(pair)], first.values.dtype.type) for pair in pairs])


def sets_of(got: Generated) -> KeptTokens:
    assert got.kept_tokens is not None and got.tokens.lengths is not None
    return KeptTokens.from_column(got.kept_tokens, got.tokens.lengths)


def dense(got: Generated) -> torch.Tensor:
    """bool[tokens, vocabulary]: the recorded sets."""
    own = range(VOCABULARY)
    return ~sets_of(got).bits(own, torch.device("cpu")).left_out(own)


@torch.no_grad()
def assert_is_right(at: Pair, prompts: Column, got: Generated, truncation: Truncation) -> None:
    model, mask = at.peer(), dense(got)
    logits, targets = [], []
    for prompt, response in zip(prompts.runs(), got.tokens.runs(), strict=True):
        tokens = torch.tensor(np.concatenate([prompt, response]), dtype=torch.long)
        logits.append(model(tokens[None]).logits[0, len(prompt) - 1 : -1] / TEMPERATURE)
        targets.append(tokens[len(prompt) :])
    scaled, chosen = torch.cat(logits), torch.cat(targets)
    scaled[:, at.excluded_ids] = -torch.inf
    lowest, highest = (by_definition(scaled, truncation, slack) for slack in (-BORDER, BORDER))
    assert (mask >= lowest).all() and (mask <= highest).all()
    assert (lowest == highest).float().mean() > 0.99, "few tokens are at the border"
    expected, _ = masked_softmax(scaled, mask, chosen)
    assert (expected - torch.tensor(got.log_probs.values)).abs().max() < 1e-4


def by_definition(scaled: torch.Tensor, truncation: Truncation, slack: float) -> torch.Tensor:
    """The kept tokens: min-p, of these the best k, of these the fewest that sum to p.

    Args:
        scaled: logits / temperature.
        truncation: the limits.
        slack: above 0 for the largest sets that rounding can give, below 0 for the smallest.
    """
    probs = scaled.softmax(dim=1)
    kept = probs >= (truncation.min_p or 0) * probs.amax(dim=1, keepdim=True) * (1 - slack)
    kept &= scaled > -torch.inf
    probs = torch.where(kept, probs, 0.0)
    if truncation.top_k is not None:
        border = probs.topk(min(truncation.top_k, VOCABULARY)).values[:, -1:]
        kept &= probs >= border * (1 - slack)
        probs = torch.where(kept, probs, 0.0)
    if truncation.top_p is not None:
        ordered, order = (probs / probs.sum(dim=1, keepdim=True)).sort(dim=1, descending=True)
        before = ordered.cumsum(dim=1) - ordered
        within = before < truncation.top_p + slack
        within[:, 0] = True
        kept &= torch.zeros_like(kept).scatter(1, order, within)
    return kept


def trainer_log_probs(at: Pair, prompts: Column, got: Generated) -> torch.Tensor:
    found = torch.full((len(got.tokens.values),), torch.nan)

    def read(outputs: TokenOutputs, part: MicroBatch) -> None:
        found[part.tokens] = outputs.values.cpu()

    groups = np.repeat(np.arange(prompts.num_rows // SAMPLES), SAMPLES)
    packing = at.model.packing(4000)
    parts = pack_micro_batches(prompts, got.tokens, groups, packing, kept_tokens=got.kept_tokens)
    at.model.infer(parts, ReadLogProbs(TEMPERATURE), read)
    return found
