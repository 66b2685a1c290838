from __future__ import annotations

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
    for pair in pairs:
        right, wrong = pair["chosen"], pair["rejected"]
        places = [place for place in range(6) if right[place] != wrong[place]]
        if len(set(right)) > 1:
            assert sorted(wrong) == sorted(right) and len(places) == 2
        else:
            assert places == [5]
