"""Pipelines of any form, for properties."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from rlhf_planner.pipelines.pipeline import Pipeline


def random_pipelines(random: Random, stages: int, micro_batches: tuple[int, ...]) -> list[Pipeline]:
    """Pipelines on the same devices, in the one and in the other direction in turn; whole
    seconds."""
    return [
        Pipeline(
            f"model{index}",
            tuple(range(stages) if index % 2 == 0 else reversed(range(stages))),
            tuple(random.randint(1, 5) for _ in range(stages)),
            tuple(random.randint(1, 9) for _ in range(stages)),
            tuple(random.randint(0, 3) for _ in range(stages)),
            count,
        )
        for index, count in enumerate(micro_batches)
    ]


@st.composite
def some_pipelines(draw: st.DrawFn, most_micro_batches: int = 4) -> list[Pipeline]:
    """One to three pipelines, each on devices of its own choice."""
    found = []
    for index in range(draw(st.integers(1, 3))):
        stages = draw(st.integers(1, 4))
        devices = draw(st.permutations(range(4)))[:stages]
        numbers = st.lists(st.integers(1, 6), min_size=stages, max_size=stages)
        found.append(
            Pipeline(
                f"model{index}",
                tuple(devices),
                tuple(draw(numbers)),
                tuple(draw(numbers)),
                tuple(draw(numbers)),
                draw(st.integers(1, most_micro_batches)),
            )
        )
    return found


limits = st.none() | st.integers(6, 30)
"""Of activations; more than one micro-batch keeps anywhere."""
