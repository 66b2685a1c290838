"""What a call collects while it runs."""

from __future__ import annotations

from itertools import permutations
from math import isnan, nan

import torch

from rlhf_runtime.calls.reports import merge_statistics
from rlhf_runtime.roles.metrics import MetricAccumulator


def test_a_nan_of_any_micro_batch_is_never_hidden() -> None:
    for values in permutations([1.0, nan, torch.tensor(2.0)]):
        metrics = MetricAccumulator()
        for value in values:
            metrics.record_max("ratio_max", value)
        assert isnan(merge_statistics([metrics.statistics()])["ratio_max"])


def test_of_nothing_there_is_no_metric() -> None:
    metrics = MetricAccumulator()
    metrics.record_mean("mean", 0.0, 0.0)
    metrics.record_spread("deviation", torch.zeros(0))
    assert merge_statistics([metrics.statistics()]) == {}
