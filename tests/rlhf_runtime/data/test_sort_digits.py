from __future__ import annotations

from collections import Counter
from operator import ne

import pytest

from rlhf_runtime.data.sort_digits import evaluation_rows, training_pairs, training_rows


def test_the_answer_is_the_prompt_sorted() -> None:
    for row in list(training_rows(0))[:500]:
        assert row["prompt"].endswith("=")
        assert row["answer"] == "".join(sorted(row["prompt"][:-1]))
        assert len(row["answer"]) == 6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_evaluation_prompts_are_held_out(seed: int) -> None:
    training = [row["prompt"] for row in training_rows(seed)]
    evaluation = [row["prompt"] for row in evaluation_rows(seed)]
    assert len(evaluation) == 256
    assert len(set(training) | set(evaluation)) == len(training) + len(evaluation)


def test_equal_seeds_give_equal_rows_and_others_do_not() -> None:
    assert list(evaluation_rows(3)) == list(evaluation_rows(3))
    assert list(evaluation_rows(3)) != list(evaluation_rows(4))


def test_leading_zeros_are_kept() -> None:
    assert any(row["prompt"].startswith("0") for row in training_rows(0))
    assert all(len(row["prompt"]) == 7 for row in training_rows(0))


def test_a_pair_has_the_answer_and_one_with_something_wrong() -> None:
    pairs, rows = list(training_pairs(0)), list(training_rows(0))
    assert [(p["prompt"], p["chosen"]) for p in pairs] == [(r["prompt"], r["answer"]) for r in rows]
    assert pairs == list(training_pairs(0)) and pairs != list(training_pairs(1))
    mistakes = Counter(mistake_of(pair["chosen"], pair["rejected"]) for pair in pairs)
    assert min(mistakes.values()) > len(pairs) / 10, "none is rare"
    assert set(mistakes) == {"one less", "one more", "swapped", "replaced", "of another"}


def mistake_of(right: str, wrong: str) -> str:
    """What is wrong with the answer; a replaced digit may stay in order."""
    assert wrong != right and wrong.isdecimal()
    if len(wrong) != len(right):
        more, less = sorted((right, wrong), key=len, reverse=True)
        assert any(more[:place] + more[place + 1 :] == less for place in range(len(more)))
        return "one less" if less == wrong else "one more"
    left = Counter(right) - Counter(wrong)
    if not left:
        assert sum(map(ne, right, wrong)) == 2
        return "swapped"
    assert left.total() == 1
    return "of another" if list(wrong) == sorted(wrong) else "replaced"
