"""What is counted of responses."""

from __future__ import annotations

from rlhf_runtime.roles.generation import num_empty


def test_blank_responses_are_empty() -> None:
    assert num_empty(["", " \n\t", "7", " 7 "]) == 2
