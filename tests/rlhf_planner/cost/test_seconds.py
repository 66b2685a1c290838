"""Parts of an estimate."""

from __future__ import annotations

from rlhf_planner.cost.seconds import PARTS, CallSeconds, in_turn


def test_the_total_is_the_sum_of_all_parts() -> None:
    """Powers of two: no part is forgotten, none counts twice."""
    call = CallSeconds(*(float(2**number) for number in range(len(PARTS))))
    assert call.total == 2 ** len(PARTS) - 1
    assert [*call.parts] == [*PARTS]
    assert sum(call.parts.values()) == call.total
    assert call.bottleneck == PARTS[-1]


def test_the_bottleneck_is_the_largest_part() -> None:
    assert CallSeconds(compute=1, memory=3, bubble=2).bottleneck == "memory"
    assert CallSeconds().bottleneck == "compute"


def test_one_after_the_other() -> None:
    one, other = CallSeconds(compute=1, bubble=2), CallSeconds(compute=3, launch=1)
    assert in_turn([one, other, one]) == CallSeconds(compute=5, launch=1, bubble=4)
    assert one.times(3) == CallSeconds(compute=3, bubble=6)
    assert in_turn([]) == CallSeconds()
