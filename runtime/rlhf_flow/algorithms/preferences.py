"""DPO: a policy learns from pairs of responses, those of the data or its own."""

from __future__ import annotations

from rlhf_api.spec.presets import OnlineDpoSettings, PreferenceSettings
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.algorithms.policy_algorithm import REFERENCE, REWARD, JobFacts
from rlhf_flow.batches import BatchValue
from rlhf_flow.fields import log_probs_of, scores_of, valid_of
from rlhf_flow.flow import Flow
from rlhf_flow.losses import Dpo as DpoLoss
from rlhf_flow.operations import BestAgainstWorst, PairLines
from rlhf_flow.roles import LanguageModel, RewardSource, Roles


class Dpo(Algorithm):
    """Direct preference optimization on the data's pairs.

    Source: Rafailov et al., Direct preference optimization (arXiv 2305.18290), equation 7.

    Args:
        settings: of the manifest.
    """

    def __init__(self, settings: PreferenceSettings) -> None:
        self.loss = DpoLoss(
            log_probs_of(REFERENCE),
            beta=settings.beta,
            label_smoothing=settings.label_smoothing,
            epochs_per_batch=settings.epochs_per_batch,
        )

    def roles(self) -> Roles:
        """Actor and reference."""
        return {"actor": LanguageModel, REFERENCE: LanguageModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Train on the pairs."""
        batch = prompts | flow.reference.log_probs(prompts)
        flow.actor.train(batch, self.loss)


class OnlineDpo(Dpo):
    """Online iterative DPO: the best of several responses against the worst.

    Source: Dong et al., RLHF Workflow (arXiv 2405.07863), algorithm 1.

    Args:
        settings: of the manifest.
        job: what else it depends on.
    """

    def __init__(self, settings: OnlineDpoSettings, job: JobFacts) -> None:
        super().__init__(settings)
        self.pairs = BestAgainstWorst(scores_of(REWARD), valid_of(REWARD))
        self.lines = PairLines(scores_of(REWARD), prompt_field=job.prompt_field)
        self.saves_pairs = settings.save_pairs
        self.reference_every_steps = settings.reference_every_steps

    def roles(self) -> Roles:
        """Actor, reference and reward."""
        return {**super().roles(), REWARD: RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Answer, score, take pairs, train; let the reference catch up at an iteration's end."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, self.pairs)
        batch |= flow.reference.log_probs(batch)
        flow.actor.train(batch, self.loss)
        if self.saves_pairs:
            flow.save(flow.compute(batch, self.lines), "pairs")
        if every := self.reference_every_steps:
            flow.every(every, lambda: flow.reference.copy_weights_from(flow.actor))
