"""`--smallest` changes defaults of options, not options on the command line."""

from __future__ import annotations

import sys
from argparse import Namespace

import pytest


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str, **smallest: object) -> Namespace:
    from command_line import make_parser, parse

    monkeypatch.setattr(sys, "argv", ["program", *words])
    parser = make_parser("bench-nothing")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=5)
    return parse(parser, **smallest)


def test_the_smallest_size_has_defaults_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = parsed(monkeypatch, rounds=1)
    assert (usual.smallest, usual.rounds, usual.steps) == (False, 300, 5)
    small = parsed(monkeypatch, "--smallest", rounds=1)
    assert (small.smallest, small.rounds, small.steps) == (True, 1, 5)


def test_an_option_on_the_command_line_has_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    small = parsed(monkeypatch, "--smallest", "--rounds=300", rounds=1, steps=1)
    assert (small.rounds, small.steps) == (300, 1)


def test_a_default_of_an_unknown_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="round'"):
        parsed(monkeypatch, round=1)
