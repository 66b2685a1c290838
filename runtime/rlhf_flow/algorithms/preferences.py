"""Training on preference pairs: DPO on the data's or the policy's own pairs, reward models."""

from __future__ import annotations

from rlhf_api.spec.presets import OnlineDpoSettings, PreferenceSettings, RewardModelSettings
from rlhf_flow.algorithms.policy_gradient import REFERENCE, REWARD, JobSettings
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import log_probs_column, scores_column, valid_column
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import BradleyTerry
from rlhf_flow.step.losses import Dpo as DpoLoss
from rlhf_flow.step.operations import BestAgainstWorst, PairLines
from rlhf_flow.step.roles import LanguageModel, RewardSource, Roles, ScalarModel


class DpoAlgorithm(Algorithm):
    """Direct preference optimization on the data's pairs.

    Source: Rafailov et al., Direct preference optimization (arXiv 2305.18290), equation 7.

    Args:
        settings: of the manifest.
    """

    def __init__(self, settings: PreferenceSettings) -> None:
        self.loss = DpoLoss(
            log_probs_column(REFERENCE),
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


class OnlineDpo(DpoAlgorithm):
    """Online iterative DPO: the best of several responses against the worst.

    Source: Dong et al., RLHF Workflow (arXiv 2405.07863), algorithm 1.

    Args:
        settings: of the manifest.
        job: other settings of the job.
    """

    def __init__(self, settings: OnlineDpoSettings, job: JobSettings) -> None:
        super().__init__(settings)
        self.pairs = BestAgainstWorst(scores_column(REWARD), valid_column(REWARD))
        self.lines = PairLines(scores_column(REWARD), prompt_field=job.prompt_field)
        self.saves_pairs = settings.save_pairs
        self.reference_every_steps = settings.reference_every_steps

    def roles(self) -> Roles:
        """Actor, reference and reward."""
        return {**super().roles(), REWARD: RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate, score, choose pairs, train; update the reference at an iteration's end."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, self.pairs)
        batch |= flow.reference.log_probs(batch)
        flow.actor.train(batch, self.loss)
        # A condition on settings: the trace sees the same calls as every step.
        if self.saves_pairs:
            flow.save(flow.compute(batch, self.lines), "pairs")
        if every := self.reference_every_steps:
            # After the training, so that an iteration starts from the policy that the last one
            # ended with.
            flow.every(every, lambda: flow.reference.copy_weights_from(flow.actor))


class RewardModel(Algorithm):
    """The Bradley-Terry model of preferences.

    Source: Ouyang et al., Training language models to follow instructions, 2022, section 3.5.

    Args:
        settings: of the manifest.
    """

    def __init__(self, settings: RewardModelSettings) -> None:
        self.loss = BradleyTerry(epochs_per_batch=settings.epochs_per_batch)

    def roles(self) -> Roles:
        """The reward model alone."""
        return {"reward_model": ScalarModel}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Train on the pairs."""
        flow.reward_model.train(prompts, self.loss)
