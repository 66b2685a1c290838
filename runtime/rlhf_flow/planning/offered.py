"""Settings of a manifest that this version does not have."""

from __future__ import annotations

from rlhf_api import RLHFJob
from rlhf_flow.errors import NotOffered


def check_offered(job: RLHFJob) -> None:
    """Refuse kinds of parallelism that no engine has yet.

    Raises:
        NotOffered: with the field, and what to write instead.
    """
    for role, model in job.spec.models.items():
        for axis, degree in (
            ("tensor", model.parallelism.tensor),
            ("pipeline", model.parallelism.pipeline),
        ):
            if degree is not None and degree > 1:
                raise NotOffered(
                    f"the engine fsdp cuts a model over all devices by itself: got "
                    f"models.{role}.parallelism.{axis} {degree}, allowed 1; remove it"
                )
    pipeline = job.spec.rollout.parallelism.pipeline
    if pipeline is not None and pipeline > 1:
        raise NotOffered(
            f"generation over pipeline stages is not offered yet: got rollout.parallelism.pipeline "
            f"{pipeline}, allowed 1; use rollout.parallelism.tensor"
        )
