"""Verifier: scores answers to rows of reasoning_gym by the score_answer of their dataset.

Rows of several datasets may be mixed: each names its own. Rows of files may be scored, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from rlhf_runtime.reasoning_gym_datasets import DATASET_FIELD, import_package, make_dataset
from rlhf_runtime.rewards.answer_code import is_program
from rlhf_runtime.rewards.sample import Sample, measures
from rlhf_runtime.row_values import field_value

# Imported with this module, so that a missing package is an error before anything is trained.
_PACKAGE = import_package()

# Datasets that compare grids of tuples. A row's record is JSON, which has lists only.
_WITH_TUPLES = ("arc_agi", "rearc")
# No dataset can parse it. Some score such an answer above 0.
UNPARSABLE = "?"
EXTRACTIONS = ("response", "line", "tags")


@measures("reasoning_gym")
def score(samples: Sequence[Sample], *, extract: str = "response") -> list[float]:
    """Score answers by their dataset: 1 for a right answer, less or 0 for others.

    extract: what of the response is the answer, without white space at its ends. `response`: all
        of it; `line`: its last line that is not blank; `tags`: the text between the last <answer>
        and </answer>, as reasoning_gym's extract_answer does.

    Raises:
        ValueError: an unknown extraction, or a record that is no row of reasoning_gym.
    """
    if extract not in EXTRACTIONS:
        raise ValueError(
            f"no way to extract an answer: got extract {extract!r}, allowed "
            f"{', '.join(EXTRACTIONS)}; correct it"
        )
    return [_score(_answer(sample.response, extract), sample.record) for sample in samples]


def _answer(response: str, extract: str) -> str | None:
    """Return the answer in a response; None if there are no tags."""
    if extract == "tags":
        answer: str | None = _PACKAGE.utils.extract_answer(response)
        return answer
    text = response.strip()
    return text.rpartition("\n")[2].strip() if extract == "line" else text


def _score(answer: str | None, record: Mapping[str, Any]) -> float:
    try:
        name = str(field_value(record, DATASET_FIELD))
        entry = {key: record[key] for key in ("question", "answer", "metadata")}
    except KeyError as error:
        raise ValueError(
            f"not a row of reasoning_gym: got fields {', '.join(record)} without {error}, allowed "
            "rows with question, answer and metadata.source_dataset; use data of reasoningGym, or "
            "another verifier"
        ) from error
    if answer is not None and _is_refused(answer, name):
        answer = UNPARSABLE
    dataset = _dataset(name, json.dumps(record.get("parameters") or {}, sort_keys=True))
    if name in _WITH_TUPLES:
        entry["metadata"] = {key: _as_tuples(value) for key, value in entry["metadata"].items()}
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:
        # Some datasets raise errors for an answer that they cannot parse, which is a wrong one.
        # An error for the row's own answer is an error of the row.
        dataset.score_answer(entry["answer"], entry)
        return 0.0


def _is_refused(answer: str, name: str) -> bool:
    """True if an answer must not reach the dataset that scores it."""
    # Its distance to the right answer is NaN, which that dataset scores as if there were none.
    is_nan = name == "complex_arithmetic" and "nan" in answer.lower()
    return is_nan or is_program(answer, name)


@cache
def _dataset(name: str, parameters: str) -> Any:
    """Make the dataset of rows; parameters: JSON. Some compare answers by their settings."""
    return make_dataset(name, json.loads(parameters))


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
