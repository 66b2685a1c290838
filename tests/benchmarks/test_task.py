"""The baselines' own view of the sorting task agrees with the runtime's."""

from __future__ import annotations

from rlhf_runtime.data.character_tokenizer import build_tokenizer
from rlhf_runtime.rewards import exact_match as verifier
from rlhf_runtime.rewards.sample import Sample


def test_prompts_become_the_tokens_of_the_runtime() -> None:
    from task import encode

    assert encode("402991=") == build_tokenizer().encode("402991=").ids


def test_a_response_ends_at_its_end_token() -> None:
    from task import END, decode, encode

    assert decode([*encode("0124"), END, *encode("99")]) == "0124"
    assert decode(encode("0124")) == "0124"


def test_exact_match_scores_as_the_verifier_does() -> None:
    from task import exact_match

    for response in ("012499", " 012499 ", "01249", "0124990", ""):
        sample = Sample("402991=", response, {"answer": "012499"}, True)
        assert [exact_match(response, "012499")] == verifier.score([sample])


def test_the_digit_share_of_nothing_is_nothing() -> None:
    from task import digit_share

    assert digit_share("", "") == 0.0
    assert digit_share("1a2b", "") == 0.5
