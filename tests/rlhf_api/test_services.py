"""Addresses of services, and questions for judges."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from rlhf_api.base import HTTP_URL_PATTERN
from rlhf_api.spec.services import JudgeReward


def judge(prompt: str) -> JudgeReward:
    return JudgeReward.model_validate({"url": "http://judge/v1", "model": "m", "prompt": prompt})


@pytest.mark.parametrize(
    "prompt",
    [
        "{prompt} {response} {record.question} {record.meta.level}",
        '{response} as {"score": 7}, {{score}}, {{{response}}}, { or {}',
    ],
)
def test_questions_name_parts_of_a_sample(prompt: str) -> None:
    assert judge(prompt).prompt == prompt


@pytest.mark.parametrize("name", ["respnse", "record", "Prompt"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=rf"got {{{name}}}, allowed {{prompt}}, {{response}}"):
        judge(f"{{{{braces}}}} {{{name}}} {{response}}")


@pytest.mark.parametrize(
    "url",
    [
        "http://judge",
        "https://judge.team-a.svc:65535/v1?key=a%20b",
        "http://my_rewards:8000?x",
        "http://127.0.0.1:1/",
        "http://[::1]:8000/score",
    ],
)
def test_addresses(url: str) -> None:
    assert re.fullmatch(HTTP_URL_PATTERN, url)


@pytest.mark.parametrize(
    "url",
    [
        *(f"http://judge:{port}/v1" for port in ("65536", "99999", "0", "080", "", "a", "80:80")),
        *("http://me:secret@host/x", "http:///x", "http://a b/", "http://::1/", "ftp://host/"),
    ],
)
def test_no_addresses(url: str) -> None:
    assert not re.fullmatch(HTTP_URL_PATTERN, url)
