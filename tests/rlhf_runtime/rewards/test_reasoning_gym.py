"""The verifier that scores answers by the score_answer of their dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.reasoning_gym_datasets import VERIFIER, GeneratorUnusable
from rlhf_runtime.rewards.reasoning_gym import score
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.verifier_main import load_verifier

reasoning_gym = pytest.importorskip("reasoning_gym", reason="an extra that needs a C compiler")


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


# All that evaluate an answer as an expression of Python.
EVALUATING = (
    *("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"),
    *("countdown", "puzzle24", "polynomial_multiplication"),
    *("simple_integration", "intermediate_integration"),
)


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_is_not_run_as_a_program(name: str, tmp_path: Path) -> None:
    record, file = record_of(name), tmp_path / "written"
    coded = "+".join(f"chr({ord(letter)})" for letter in f"open({str(file)!r}, 'w')")
    programs = (
        f"open({str(file)!r}, 'w')",
        f" [open({str(file)!r}, 'w')]",
        f"__import__('pathlib').Path({str(file)!r}).touch()",
        f"exec({coded})",
        f"ｅxec({coded})",
        "exit()",
    )
    unparsable = score([sample("?", record)])[0]
    assert score([sample(program, record) for program in programs]) == [unparsable] * len(programs)
    assert not file.exists()


@pytest.mark.parametrize("name", EVALUATING)
def test_other_answers_to_these_datasets_have_the_datasets_scores(name: str) -> None:
    for row in range(3):
        record = record_of(name, row=row)
        dataset = reasoning_gym.create_dataset(name, seed=1, size=row + 1)
        texts = ("", "7", "So: it is 7.", "[[0, 1], [1]]", "[1, 2]", "x**2/2 + exp(x) + C", "A")
        for text in (record["answer"], f"({record['answer']})", *texts):
            assert score([sample(text, record)]) == [dataset.score_answer(text, record)], text


def test_no_number_is_no_right_complex_number() -> None:
    record = record_of("complex_arithmetic")
    samples = [sample(text, record) for text in ("nan", "NaN + nani", record["answer"])]
    assert score(samples) == [0.0, 0.0, 1.0]
