from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.telemetry.shortened_text import shorten, shorten_further

from ...depth import examples


@settings(max_examples=examples(30))
@given(st.text(max_size=50), st.integers(0, 40))
def test_a_shortened_text_has_its_begin_and_its_end(text: str, limit: int) -> None:
    short = shorten(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        begin, _, end = short.partition(f" [... {len(text) - limit} characters ...] ")
        assert len(begin) + len(end) == limit and len(end) == limit // 3
        assert text.startswith(begin) and text.endswith(end)


@settings(max_examples=examples(50))
@given(st.text(max_size=200), st.integers(0, 150), st.integers(0, 150))
def test_a_text_that_is_shortened_twice_is_as_if_shortened_once(
    text: str, first: int, second: int
) -> None:
    shortened = shorten(text, first)
    assert shorten_further(shortened, second) == shorten(text, min(first, second))


def test_marks_that_a_model_wrote_are_a_part_of_its_text() -> None:
    text = "a" * 50 + " [... 7 characters ...] " + "b" * 50
    assert shorten_further(text, 30) == shorten(text, 30)
    stored = shorten(text * 20, 600)
    assert shorten_further(stored, 300) == shorten(text * 20, 300)
