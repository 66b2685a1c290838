"""The table that the guide shows equals HybridFlow's table 2 for 1-8-2 -> 1-2."""

from __future__ import annotations

from importlib import import_module

import pytest


def test_rows_that_tensor_parallelism_cuts_cost_what_table_2_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import_module("reshard_accounting").print_accounting()
    printed = capsys.readouterr().out
    costs = {
        (scheme, cut): [float(value) for value in values.split()]
        for line in printed.splitlines()
        for scheme in ("DeepSpeed-Chat", "vanilla", "HybridFlow")
        if line.startswith(scheme)
        for cut, _, values in [line.removeprefix(scheme).strip().partition("  ")]
        for _, _, values in [values.partition(" G ")]
    }
    received, peak, redundant = 0, 2, 3
    t, d, t_g = 8, 2, 2
    for (scheme, cut), expected in {
        ("DeepSpeed-Chat", "rows in 16 -> rows in 2"): (1 - 1 / (t * d), 1, 1 / (t * d)),
        ("vanilla", "rows in 8 -> rows in 2"): (1 - 1 / t, 1, 1 / t),
        ("vanilla", "columns in 8 -> columns in 2"): (1 - 1 / t, 1, 1 / t),
        ("HybridFlow", "rows in 8 -> rows in 2"): ((t - t_g) / (t_g * t), 1 / t_g, 0),
        ("HybridFlow", "columns in 8 -> columns in 2"): ((t - t_g) / (t_g * t), 1 / t_g, 0),
    }.items():
        values = costs[scheme, cut]
        assert (values[received], values[peak], values[redundant]) == expected
    assert "1-8-16 -> 1-2-64 on 128 ranks" in printed
