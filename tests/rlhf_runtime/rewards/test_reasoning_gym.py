"""The verifier that scores answers by the score_answer of their dataset."""

from __future__ import annotations

import json
from typing import Any

import pytest
import reasoning_gym

from rlhf_runtime.reasoning_gym_datasets import VERIFIER, GeneratorUnusable
from rlhf_runtime.rewards.reasoning_gym import score
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.verifier_main import load_verifier


def record_of(name: str, parameters: dict[str, Any] | None = None, row: int = 0) -> dict[str, Any]:
    """A row as a verifier gets it: JSON."""
    item = reasoning_gym.create_dataset(name, seed=1, size=row + 1, **(parameters or {}))[row]
    record: dict[str, Any] = json.loads(json.dumps({**item, "parameters": parameters or {}}))
    return record


def sample(response: str, record: dict[str, Any]) -> Sample:
    return Sample("", response, record, finished=True)


# Datasets that compare texts, evaluate expressions, follow their settings, and compare grids.
NAMES = ("chain_sum", "countdown", "knights_knaves", "graph_color", "rearc", "word_ladder")


def test_scores_are_those_of_each_rows_dataset() -> None:
    """Also in a mixture, and of rows that were written as JSON."""
    for row in range(3):
        records = [record_of(name, row=row) for name in NAMES]
        answers = [str(record["answer"]) for record in records]
        answers[3] = json.dumps(records[3]["metadata"]["possible_answer"])
        for response in [None, "7", "no idea"]:
            samples = [
                sample(response or answer, record)
                for answer, record in zip(answers, records, strict=True)
            ]
            expected = [
                reasoning_gym.create_dataset(name, seed=1, size=row + 1).score_answer(
                    one.response,
                    reasoning_gym.create_dataset(name, seed=1, size=row + 1)[row],
                )
                for name, one in zip(NAMES, samples, strict=True)
                if name != "word_ladder"  # its rows differ from process to process
            ]
            assert score(samples)[:-1] == expected
            if response is None:
                assert score(samples) == [1.0] * len(NAMES)


def test_the_settings_of_a_row_count() -> None:
    record = record_of("decimal_arithmetic", {"precision": 8})
    assert score([sample(record["answer"], record)]) == [1.0]
    strict = reasoning_gym.create_dataset("puzzle24", operators=["+"])
    puzzle = record_of("puzzle24")
    puzzle["parameters"] = {"operators": ["+"]}
    wrong = sample(puzzle["answer"], puzzle)
    assert score([wrong]) == [strict.score_answer(puzzle["answer"], puzzle)]


def test_the_answer_is_the_response_its_last_line_or_between_tags() -> None:
    record = record_of("chain_sum")
    answer = record["answer"]
    responses = [f" {answer}\n", f"I think\n{answer}\n \n", f"so <answer> {answer} </answer> ok"]
    samples = [sample(response, record) for response in responses]
    assert [value == 1.0 for value in score(samples)] == [True, False, False]
    assert [value == 1.0 for value in score(samples, extract="line")] == [True, True, False]
    assert [value == 1.0 for value in score(samples, extract="tags")] == [False, False, True]
    assert score([sample("<answer>", record)], extract="tags") == [0.0]
    with pytest.raises(ValueError, match="got extract 'all', allowed response, line, tags"):
        score(samples, extract="all")


def test_an_answer_that_a_dataset_cannot_parse_is_wrong() -> None:
    record = record_of("prime_factorization")
    assert score([sample("no idea", record), sample(record["answer"], record)]) == [0.0, 1.0]


def test_a_row_that_cannot_be_scored_is_an_error() -> None:
    record = record_of("prime_factorization")
    with pytest.raises(ValueError, match="invalid literal"):
        score([sample("7", {**record, "answer": "its factors"})])
    with pytest.raises(GeneratorUnusable, match="got primes"):
        score([sample("7", {**record, "metadata": {"source_dataset": "primes"}})])
    with pytest.raises(ValueError, match="not a row of reasoning_gym.*prompt, answer"):
        score([sample("7", {"prompt": "1+6=", "answer": "7"})])


def test_a_verifiers_process_can_load_it() -> None:
    assert load_verifier(VERIFIER, {"extract": "tags"}) is score
