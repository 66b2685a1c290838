"""The contract: the RLHFJob that a user writes, and the StatusReport of a run."""

from rlhf_api.exits import ExitCode
from rlhf_api.spec.job import API_VERSION, GROUP, KIND, VERSION, RLHFJob, RLHFJobSpec

__all__ = ["API_VERSION", "GROUP", "KIND", "VERSION", "ExitCode", "RLHFJob", "RLHFJobSpec"]
