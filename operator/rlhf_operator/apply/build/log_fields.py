"""The fields of log lines of a job's pods."""

from __future__ import annotations

import json

from rlhf_api.on_cluster import LOG_FIELDS_VARIABLE
from rlhf_api.spec.environment import EnvironmentVariable
from rlhf_api.spec.job import RLHFJob
from rlhf_operator.apply.build.owner import Owner


def with_log_fields(job: RLHFJob, owner: Owner, attempt: int) -> RLHFJob:
    """Return the job with a variable by which its pods log JSON objects with these fields."""
    fields = json.dumps({"job": f"{owner.namespace}/{owner.name}", "attempt": attempt})
    variable = EnvironmentVariable(name=LOG_FIELDS_VARIABLE, value=fields)
    spec = job.spec.model_copy(update={"env": (*job.spec.env, variable)})
    return job.model_copy(update={"spec": spec})
