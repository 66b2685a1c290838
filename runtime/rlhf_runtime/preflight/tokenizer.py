"""Checks that a tokenizer belongs to its model."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.vocabulary import num_embedding_rows
from rlhf_runtime.preflight.findings import Findings

# Share of a model's vocabulary that a tokenizer may leave unused. Padding takes some percent.
MAX_UNUSED_ROWS = 0.1


def check_tokenizer(tokenizer: TextTokenizer, findings: Findings) -> None:
    """Check the tokenizer of the policy.

    Args:
        tokenizer: of the policy's folder.
        findings: collects warnings, and an end token that only the chat template has.
    """
    findings.warnings += _foreign_tokenizer(tokenizer)
    if tokenizer.template_end is not None:
        findings.facts.append(_template_end(tokenizer, tokenizer.template_end))


def _foreign_tokenizer(tokenizer: TextTokenizer) -> Iterator[str]:
    """Warn of a tokenizer that seems to belong to another model."""
    # Responses would end in the middle, and nothing would fail.
    for token in tokenizer.ordinary_end_tokens:
        yield (
            f"a response ends at an ordinary word, too: got {tokenizer.text_of([token])!r}, as "
            f"token {token} of {tokenizer.folder} is in its tokenizer, and its config.json or "
            "generation_config.json names it as an end; check that the tokenizer belongs to the "
            "model"
        )
    if missing := tokenizer.missing_end_tokens:
        yield (
            "the model's files name an end token that its tokenizer does not have: got "
            f"{', '.join(map(str, missing))} in config.json or generation_config.json of "
            f"{tokenizer.folder}, with a tokenizer of {tokenizer.num_tokens:,} tokens; check that "
            "the tokenizer belongs to the model"
        )
    try:
        rows = num_embedding_rows(tokenizer.folder)
    except ModelIncomplete:  # an error of another check
        return
    unused = rows - tokenizer.num_tokens
    if unused > MAX_UNUSED_ROWS * rows:
        yield (
            f"{unused / rows:.0%} of the model's vocabulary has no token: got vocab_size {rows:,} "
            f"for {tokenizer.num_tokens:,} tokens in {tokenizer.folder}; check that the tokenizer "
            "belongs to the model"
        )


def _template_end(tokenizer: TextTokenizer, token: int) -> str:
    """Describe an end token that only the chat template has."""
    return (
        f"a response ends with {tokenizer.text_of([token])!r}, too: the chat template of "
        f"{tokenizer.folder} writes this token, {token}, behind answers, and no file lists it as "
        "an end token"
    )
