"""Every way in which a job may compute within memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations

from rlhf_flow.planning.fitting import PlacedJob
from rlhf_flow.planning.memory_choices import MemoryChoice, memory_choices


def all_choices(placed: PlacedJob) -> Iterator[MemoryChoice]:
    """All ways to compute: those of `memory_choices`, with each set of roles recomputing that may;
    that which takes least memory is last."""
    choices = memory_choices(placed.problem, placed.groups)
    most = max(len(choice.chosen_to_recompute) for choice in choices)
    for choice in choices:
        may = sorted(choice.chosen_to_recompute)
        if len(may) == most:
            for chosen in chain(*(combinations(may, size) for size in range(most + 1))):
                yield replace(choice, recomputed=choice.told_to_recompute | {*chosen})
