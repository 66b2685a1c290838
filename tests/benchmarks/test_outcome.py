"""Tables, ratios and the JSON line of the benchmarks."""

from __future__ import annotations

import json

import pytest


def test_the_ratio_is_that_of_neighbours_not_of_medians() -> None:
    from outcome import paired_ratio

    # The machine slows down tenfold in the middle; ours is 1.5 times the baseline throughout.
    baseline = [1.0, 10.0, 10.0, 1.0, 1.0]
    assert paired_ratio([1.5 * value for value in baseline], baseline) == pytest.approx(1.5)


def test_the_ratio_refuses_rounds_without_a_partner() -> None:
    from outcome import paired_ratio

    with pytest.raises(ValueError):
        paired_ratio([1.0, 2.0], [1.0])


def test_a_phase_that_some_records_lack_counts_as_nothing_there() -> None:
    from outcome import phase_medians

    assert phase_medians([{"a": 0.1}, {"a": 0.3, "b": 0.2}, {"a": 0.2}]) == pytest.approx(
        {"a": 200.0, "b": 0.0}
    )


def test_a_table_aligns_names_left_and_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    from outcome import print_table

    print_table(["name", "ms"], [["generate", 341.88], ["x", None]])
    assert capsys.readouterr().out == "name         ms\ngenerate  341.9\nx             -\n"


def test_the_last_line_is_json_with_cores_and_load(capsys: pytest.CaptureFixture[str]) -> None:
    from outcome import print_json

    print_json("step", smallest=False, ratio=0.9)
    line = json.loads(capsys.readouterr().out)
    assert (line["benchmark"], line["ratio"]) == ("step", 0.9)
    assert line["cores"] >= 1 and "load" in line and not line["smallest"]


def test_the_smallest_size_says_that_times_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    from outcome import limit_verdict, print_json, verdict

    print_json("step", smallest=True)
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith("says nothing about speed") and json.loads(last)["smallest"]
    assert verdict("step", 9.0, 1.15, smallest=True).endswith("not checked")
    assert limit_verdict("memory", 1.0, "MiB", 8.0, smallest=True).endswith("not checked")


@pytest.mark.parametrize(("ratio", "word"), [(1.15, "reached"), (1.16, "MISSED")])
def test_a_verdict_says_whether_the_target_is_reached(ratio: float, word: str) -> None:
    from outcome import verdict

    assert verdict("step", ratio, 1.15, smallest=False).endswith(word)
