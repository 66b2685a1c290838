import pytest

from rlhf_api.reading.model_errors import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("2h", 7200),
        ("1.5 min", 90),
        ("30s", 30),
        ("2d", 172800),
        ("500ms", 1),
        ("soon", None),
        ("2 fortnights", None),
        ("7", None),
    ],
)
def test_a_duration_is_so_many_whole_seconds(text: str, seconds: int | None) -> None:
    assert parse_seconds(text) == seconds
