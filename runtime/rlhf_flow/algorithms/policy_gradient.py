"""Policy-gradient algorithms: what they share, and GRPO, RLOO, OPO and REINFORCE++.

GRPO from preset to formula: `GrpoSettings` of `rlhf_api.spec.presets` -> `PolicyGradient.step` ->
the advantages of `estimator` -> `rlhf_runtime.roles.operations` ->
`rlhf_runtime.numerics.group_advantages`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from rlhf_api.spec.conversation import TurnCredit
from rlhf_api.spec.policy_loss import AdaptiveKl, KlEstimator, PolicyLossSettings
from rlhf_api.spec.presets import (
    GrpoSettings,
    OpoSettings,
    ReinforcePlusPlusSettings,
    RlooSettings,
)
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.columns import (
    ROLLOUT_LOG_PROBS,
    log_probs_column,
    scores_column,
    valid_column,
)
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.losses import ClippedLoss
from rlhf_flow.step.operations import (
    AdaptiveKlCoefficient,
    AddTurnAdvantages,
    AddTurnRewards,
    GroupAdvantages,
    GroupBaseline,
    Operation,
    PenalizedScores,
    RewardsToGo,
    TokenRewards,
    Whiten,
)
from rlhf_flow.step.roles import LanguageModel, RewardSource, Roles

ACTOR, REFERENCE, REWARD = "actor", "reference", "reward"
PENALIZED_SCORES = "penalized_scores"


@dataclass(frozen=True)
class JobSettings:
    """Settings of a job that algorithms use in addition to their own."""

    needs_old_log_probs: bool
    """True if the generation engine's log-probabilities cannot serve as the old ones."""
    prompts_per_step: int
    max_response_tokens: int
    prompt_field: str
    """Name of the prompt in a row of data.train."""
    turn_credit: TurnCredit | None = None
    """Use of the rewards of turns."""


@dataclass(frozen=True)
class TurnRewards:
    """The use of an environment's rewards of turns."""

    credit: TurnCredit | None
    """None: they are not used."""

    def on_tokens(self) -> tuple[AddTurnRewards, ...]:
        """Add them to the rewards of tokens."""
        return () if self.credit is None else (AddTurnRewards(self.credit.weight),)

    def on_turns(self, valid: str, *, normalize_by_std: bool) -> tuple[AddTurnAdvantages, ...]:
        """Add their comparison with the other samples of the prompt to the advantages.

        Args:
            valid: the column that is true for the rows that count.
            normalize_by_std: True: divide by the standard deviation.
        """
        if self.credit is None:
            return ()
        weight, discount = self.credit.weight, self.credit.discount
        return (AddTurnAdvantages(valid, weight, discount, normalize_by_std),)


@dataclass(frozen=True)
class KlPenalty:
    """A KL penalty on rewards, against the reference."""

    coefficient: float
    """Weight; 0: no penalty."""
    estimator: KlEstimator
    policy_log_probs: str
    """The column of the policy's log-probabilities."""
    adaptive: AdaptiveKl | None = None
    """Adaptation of the weight. None: it is constant."""
    turns: TurnRewards = TurnRewards(None)
    reference_log_probs: str = log_probs_column(REFERENCE)

    def on_tokens(self, scores: str) -> tuple[Operation, ...]:
        """Token rewards: the score on the last token, the rewards of turns, minus the penalty on
        every token.

        Args:
            scores: the column of scores.
        """
        adapted = self._adapted()
        own, reference = self.policy_log_probs, self.reference_log_probs
        rewards = TokenRewards(
            *(scores, self.coefficient, self.estimator, own, reference),
            adaptive_coefficient=adapted[0].coefficient if adapted else None,
        )
        return *adapted, rewards, *self.turns.on_tokens()

    def on_scores(self, scores: str) -> tuple[AdaptiveKlCoefficient | PenalizedScores, ...]:
        """Scores minus the penalty of the complete response; nothing without a penalty.

        Args:
            scores: the column of scores.
        """
        # Unlike TokenRewards the operation has no purpose but the penalty and refuses weight 0.
        if self.coefficient == 0:
            return ()
        adapted = self._adapted()
        own, reference = self.policy_log_probs, self.reference_log_probs
        penalized = PenalizedScores(
            *(scores, self.coefficient, reference, self.estimator, own),
            penalized=PENALIZED_SCORES,
            adaptive_coefficient=adapted[0].coefficient if adapted else None,
        )
        return *adapted, penalized

    def _adapted(self) -> tuple[AdaptiveKlCoefficient, ...]:
        """The operation that adapts the weight; nothing if it is constant."""
        if self.adaptive is None:
            return ()
        return (
            AdaptiveKlCoefficient(
                initial=self.coefficient,
                target=self.adaptive.target,
                reference_log_probs=self.reference_log_probs,
                kl_estimator=self.estimator,
                horizon=self.adaptive.horizon,
                policy_log_probs=self.policy_log_probs,
            ),
        )


class PolicyAlgorithm(Algorithm):
    """An actor that samples and is trained, a reward, and a reference for a KL penalty.

    Args:
        settings: of the manifest.
        job: other settings of the job.
        valid: the column that is true for the rows that count.
    """

    def __init__(
        self, settings: PolicyLossSettings, job: JobSettings, valid: str = valid_column(REWARD)
    ) -> None:
        self.uses_reference = settings.kl_coefficient > 0
        self.uses_old_log_probs = job.needs_old_log_probs
        # With a single update per step in float32 the generation engine's log-probabilities agree
        # with the training engine's within the tolerance that every step reports, which saves a
        # forward pass. Otherwise the actor computes its own before the first update. The ratio and
        # the KL penalty use the same ones.
        old = log_probs_column(ACTOR) if job.needs_old_log_probs else ROLLOUT_LOG_PROBS
        self.penalty = KlPenalty(
            *(settings.kl_reward_coefficient, settings.estimator, old, settings.adaptive_kl),
            turns=TurnRewards(job.turn_credit),
        )
        self.loss = ClippedLoss.from_settings(
            settings,
            valid=valid,
            old_log_probs=old,
            reference_log_probs=log_probs_column(REFERENCE) if settings.has_kl_loss else None,
        )

    def roles(self) -> Roles:
        """Actor and reward, and a reference for a KL penalty."""
        reference = {REFERENCE: LanguageModel} if self.uses_reference else {}
        return {ACTOR: LanguageModel, **reference, REWARD: RewardSource}

    @abstractmethod
    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """One training step."""

    def with_log_probs(self, flow: Flow, batch: BatchValue) -> BatchValue:
        """Add the log-probabilities of actor and reference that the loss and a penalty need."""
        if self.uses_old_log_probs:
            batch |= flow.actor.log_probs(batch)
        if self.uses_reference:
            batch |= flow.reference.log_probs(batch)
        return batch


class PolicyGradient(PolicyAlgorithm):
    """GRPO, RLOO, OPO and REINFORCE++: advantages from scores alone, without a critic.

    Sources: GRPO, DeepSeekMath (arXiv 2402.03300), section 4.1; Dr.GRPO (arXiv 2503.20783); RLOO
    (arXiv 2402.14740); OPO (arXiv 2505.23585); REINFORCE++ (arXiv 2501.03262).

    Args:
        settings: of the manifest.
        job: other settings of the job.
        valid: the column that is true for the rows that count.
    """

    def __init__(
        self, settings: PolicyLossSettings, job: JobSettings, valid: str = valid_column(REWARD)
    ) -> None:
        super().__init__(settings, job, valid)
        self.advantages = estimator(settings, scores_column(REWARD), valid, self.penalty)

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        """Generate, score, estimate advantages, train."""
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch = self.with_log_probs(flow, batch)
        batch |= flow.compute(batch, *self.advantages)
        flow.actor.train(batch, self.loss)


def estimator(
    settings: PolicyLossSettings,
    scores: str,
    valid: str,
    penalty: KlPenalty,
) -> tuple[Operation, ...]:
    """The operations from a score per response to advantages of its tokens.

    Args:
        settings: of the algorithm.
        scores: the column of scores.
        valid: the column that is true for the rows that count.
        penalty: the KL penalty on rewards.
    """
    # Without a group each token is credited with the rewards from it on, so the penalty counts per
    # token. Comparisons within a group are of complete responses, so there it changes the scores.
    if isinstance(settings, ReinforcePlusPlusSettings) and not settings.group_baseline:
        return *penalty.on_tokens(scores), RewardsToGo(settings.gamma), Whiten(valid)
    penalties = penalty.on_scores(scores)
    if penalties:
        scores = PENALIZED_SCORES
    turns = penalty.turns
    match settings:
        # Dr.GRPO is GRPO without the division by the deviation. DAPO's settings are GRPO's.
        case GrpoSettings():
            normalize = settings.normalize_by_std
            further = turns.on_turns(valid, normalize_by_std=normalize)
            return *penalties, GroupAdvantages(scores, valid, normalize), *further
        case RlooSettings():
            baseline = GroupBaseline.LEAVE_ONE_OUT
            further = turns.on_turns(valid, normalize_by_std=False)
            return *penalties, GroupAdvantages(scores, valid, False, baseline), *further
        case OpoSettings():
            baseline = GroupBaseline.LENGTH_WEIGHTED
            further = turns.on_turns(valid, normalize_by_std=False)
            return *penalties, GroupAdvantages(scores, valid, False, baseline), *further
        # REINFORCE++ scales by the batch's standard deviation instead of each group's.
        case ReinforcePlusPlusSettings():
            further = turns.on_turns(valid, normalize_by_std=False)
            return *penalties, GroupAdvantages(scores, valid, False), *further, Whiten(valid)
    raise AssertionError(f"{type(settings).__name__} has another step")
