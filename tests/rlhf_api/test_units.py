import pytest

from rlhf_api.units import without_unit


@pytest.mark.parametrize(
    ("field", "text", "number"),
    [
        ("activeDeadlineSeconds", "90m", "5400"),
        ("activeDeadlineSeconds", "2h", "7200"),
        ("backoffSeconds", "1.5 min", "90"),
        ("backoffSeconds", "500ms", "0.5"),
        ("kvCacheGibibytes", "2Gi", "2"),
        ("kvCacheGibibytes", "512MiB", "0.5"),
        ("kvCacheGibibytes", "2h", None),
        ("activeDeadlineSeconds", "soon", None),
        ("activeDeadlineSeconds", "2 fortnights", None),
        ("steps", "2h", None),
    ],
)
def test_a_quantity_is_given_in_the_fields_unit(field: str, text: str, number: str | None) -> None:
    assert without_unit(field, text) == number
