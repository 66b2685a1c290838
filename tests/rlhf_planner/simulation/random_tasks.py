"""Steps of any form, for properties."""

from __future__ import annotations

from hypothesis import strategies as st

from rlhf_planner.simulation.event_graph import PoolRanks, Task

NUM_RANKS = 6


@st.composite
def some_ranks(draw: st.DrawFn) -> tuple[PoolRanks, ...]:
    """Ranks of up to two pools, some of which may be named twice, as those of two meshes are."""
    parts = []
    for pool in draw(st.lists(st.sampled_from(["a", "b"]), max_size=2)):
        first = draw(st.integers(0, NUM_RANKS - 1))
        parts.append(PoolRanks(pool, range(first, draw(st.integers(first + 1, NUM_RANKS)))))
    return tuple(parts)


@st.composite
def steps(draw: st.DrawFn, most_tasks: int = 6, most_seconds: int = 6) -> list[Task]:
    """Tasks of a step that take whole seconds."""
    names = [f"call{number}" for number in range(draw(st.integers(1, most_tasks)))]
    return [
        Task(
            name,
            draw(st.integers(0, most_seconds)),
            draw(some_ranks()),
            tuple(draw(st.lists(st.sampled_from(names[:number]), max_size=2))) if number else (),
            tuple(draw(st.lists(st.sampled_from(names), max_size=2))),
            draw(st.sampled_from([None, None, None, "host"])),
        )
        for number, name in enumerate(names)
    ]


passes_ahead = st.integers(0, 2)
