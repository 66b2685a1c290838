import pytest

from rlhf_runtime.controller.divergence import Divergence
from rlhf_runtime.errors import TrainingDiverged

GOOD = {"actor/skipped_updates": 0.0, "critic/skipped_updates": 0.0, "reward/mean": 1.0}
BAD = {**GOOD, "actor/skipped_updates": 1.0}


def test_a_step_now_and_then_is_told_and_no_more() -> None:
    divergence = Divergence(3)
    told = [
        divergence.record_step(step, metrics)
        for step, metrics in enumerate([BAD, BAD, GOOD] * 4, start=1)
    ]
    assert [step for step, text in enumerate(told, start=1) if text] == [1, 4, 7, 10]
    assert "updates of the actor are left out from step 1 on" in told[0]


def test_too_many_in_a_row_end_the_job() -> None:
    divergence = Divergence(3)
    for step, metrics in enumerate([GOOD, BAD, BAD], start=1):
        divergence.record_step(step, metrics)
    with pytest.raises(TrainingDiverged, match="updates of the actor left out in the 3 steps"):
        divergence.record_step(4, BAD)
