"""What the parts around a cluster agree on."""

from __future__ import annotations

import pytest

from rlhf_api.on_cluster import job_from_submission, ray_cpus, ray_gpus, submission_id
from rlhf_api.spec.resources import Device, NodePool


@pytest.mark.parametrize("job", ["sort", "sort-grpo", "a-1-2"])
def test_a_submission_names_its_job(job: str) -> None:
    assert job_from_submission(submission_id(job, 3, 14)) == job


@pytest.mark.parametrize("text", ["sort", "sort-1", "sort-1-x", "sort-a-1"])
def test_what_is_no_submission_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed JOB-ATTEMPT-RESTART"):
        job_from_submission(text)


def test_ray_is_told_of_ranks_and_hosts() -> None:
    gpus = NodePool(name="a", devices_per_node=8)
    cpus = NodePool(name="b", devices_per_node=2, device=Device.CPU)
    assert (ray_cpus(gpus), ray_gpus(gpus)) == (10, 8)
    assert (ray_cpus(cpus), ray_gpus(cpus)) == (4, 0)
