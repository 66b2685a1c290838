"""Trainings of the update benchmark: seconds and memory of interleaved stages, and what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlhf_planner.memory.megatron import micro_batch_bytes

if TYPE_CHECKING:
    from updates_choices import Training


def training(stages: int, chunks: int, num_gpus: int = 32) -> Training:
    """The actor of 7B, cut over 8 tensor ranks, with micro-batches of two sequences."""
    from papers_job import paper_problem
    from updates_choices import trainings

    (own,) = (
        own
        for own in trainings(paper_problem("7B", num_gpus), "actor", num_gpus)
        if (own.pipeline.num_stages, own.model.mesh.tensor, own.chunks) == (stages, 8, chunks)
        and own.model.micro_batch_tokens == 4096
        and not own.model.recompute
    )
    return own


def test_two_chunks_halve_the_bubble_and_send_twice() -> None:
    plain, interleaved = training(4, 1), training(4, 2)
    call = plain.call
    assert plain.seconds == pytest.approx(call.total)
    saved = call.bubble / 2 - call.stage_communication
    assert plain.seconds - interleaved.seconds == pytest.approx(saved)
    assert interleaved.busy_seconds - plain.busy_seconds == pytest.approx(call.stage_communication)


def test_the_first_of_four_stages_keeps_eleven_chunks_instead_of_four_micro_batches() -> None:
    plain, interleaved = training(4, 1), training(4, 2)
    chunk = micro_batch_bytes(plain.model) // 2
    assert interleaved.total_bytes - plain.total_bytes == pytest.approx(3 * chunk, abs=2)


def test_fusion_never_beats_pipelines_that_never_idle() -> None:
    from papers_job import SHORT
    from updates_choices import compare

    result = compare("7B", 16, SHORT)
    assert result.fused is not None and result.bound is not None and result.in_turn is not None
    busy = sum(own.busy_seconds for own in result.fused.trainings)
    alone = sum(own.seconds for own in result.fused.trainings)
    assert result.bound <= busy <= result.fused.seconds < alone
    one, other = result.fused.trainings
    assert one.model.mesh == other.model.mesh and one.model.mesh.pipeline > 1
