"""The reference: a causal language model that is only read."""

from __future__ import annotations

from rlhf_runtime.engines.fsdp.model import FsdpModel
from rlhf_runtime.roles.context import Result, RoleContext
from rlhf_runtime.roles.policy import policy_log_probs
from rlhf_runtime.workers.inputs import Inputs


class FrozenPolicy:
    """Answers with log-probabilities."""

    def __init__(self, context: RoleContext) -> None:
        self._micro_batch_tokens = context.micro_batch_tokens
        self._temperature = context.job.spec.rollout.temperature
        self.model = FsdpModel(
            context.folder, context.world, context.precision, trained=False, tick=context.tick
        )

    def log_probs(self, inputs: Inputs) -> Result:
        """Log-probabilities of the responses."""
        return policy_log_probs(self.model, inputs, self._micro_batch_tokens, self._temperature)
