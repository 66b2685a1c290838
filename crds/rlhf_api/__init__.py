"""The contract: what a user writes (RLHFJob), what the planner decides (Plan), what a run reports."""

from rlhf_api.exits import ExitCode
from rlhf_api.job import API_VERSION, GROUP, KIND, VERSION, RLHFJob, RLHFJobSpec

__all__ = ["API_VERSION", "GROUP", "KIND", "VERSION", "ExitCode", "RLHFJob", "RLHFJobSpec"]
