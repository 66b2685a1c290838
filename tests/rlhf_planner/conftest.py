"""The small jobs of the tests of the flow, for those of the planner."""

from __future__ import annotations

from ..rlhf_flow.conftest import MakeJob, job, make_job

__all__ = ["MakeJob", "job", "make_job"]
