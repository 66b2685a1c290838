"""Pairs as lines of a data set, compared with lines written by hand, and read as one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlhf_api.spec.data import PreferenceFields
from rlhf_runtime.data.row_checks import RowProblem
from rlhf_runtime.data.row_responses import Pair, answer_message, parse_pair
from rlhf_runtime.errors import UserCodeFailed
from rlhf_runtime.roles.pair_lines import Response, pair_lines

MESSAGES = [{"role": "user", "content": "why?"}]


def response(group: int, text: str, preference: int, score: float = 0.0, **row: Any) -> Response:
    record = json.dumps({"prompt": "<user>why?", "record": row})
    return Response(group, record, text, score, preference)


def test_a_chosen_row_has_its_pair_and_all_others_nothing() -> None:
    row = {"id": 7, "prompt": MESSAGES}
    lines = pair_lines(
        [
            response(4, "because", 0, 0.5, **row),
            response(4, "don't know", -1, -1.0, **row),
            response(2, "nobody", 0, 0.0, prompt="who?"),
            response(4, "as it is \u00fc\n\u2028", 1, 2.5, **row),
            response(2, "I", 1, 1.0, prompt="who?"),
        ],
        "prompt",
        12,
    )
    assert lines == [
        *("", "", ""),
        '{"id": 7, "prompt": [{"role": "user", "content": "why?"}], '
        r'"chosen": "as it is \u00fc\n\u2028", "rejected": "don'
        "'t know\", "
        '"chosen_score": 2.5, "rejected_score": -1.0, "step": 12}',
        "",
    ]


def test_every_pair_of_several_is_there_in_the_order_of_rows() -> None:
    rows = [("a", 1), ("b", -1), ("c", 1), ("d", -1)]
    lines = pair_lines([response(0, text, sign, prompt="?") for text, sign in rows], "prompt", 1)
    found = [[(line["chosen"], line["rejected"]) for line in parsed(text)] for text in lines]
    assert found == [[("a", "b"), ("a", "d")], [], [("c", "b"), ("c", "d")], []]


def parsed(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("prompt", ["why?", MESSAGES])
def test_a_line_is_a_row_of_preferences_whatever_the_data_called_its_fields(prompt: Any) -> None:
    row = {"question": prompt, "prompt": 3, "chosen": None, "step": "first", "level": 9}
    lines = pair_lines(
        [response(0, "yes", 1, 1.0, **row), response(0, "no", -1, 0.0, **row)], "question", 3
    )
    (line,) = parsed(lines[0])
    assert parse_pair(line, "prompt", PreferenceFields()) == Pair(
        prompt, (answer_message("yes"),), (answer_message("no"),)
    )
    assert (line["question"], line["level"], line["step"]) == (prompt, 9, 3)


@pytest.mark.parametrize(("chosen", "rejected"), [("", "no"), ("yes", " \n"), ("yes", "yes")])
def test_what_data_of_preferences_cannot_have_is_left_out(chosen: str, rejected: str) -> None:
    rows = [response(0, chosen, 1, prompt="?"), response(0, rejected, -1, prompt="?")]
    with pytest.raises(RowProblem):
        row = {"prompt": "?", "chosen": chosen, "rejected": rejected}
        parse_pair(row, "prompt", PreferenceFields())
    assert pair_lines(rows, "prompt", 1) == ["", ""]


def test_a_row_without_the_prompts_field_is_told() -> None:
    rows = [response(0, "yes", 1, question="why?"), response(0, "no", -1, question="why?")]
    with pytest.raises(UserCodeFailed, match=r"prompt_field='prompt'\) names.*got question; name"):
        pair_lines(rows, "prompt", 1)
