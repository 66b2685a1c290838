"""Rules of what depends on evaluations: their data, and the metrics that they are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_api.cel_literals import member, text
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.checkpoint import FinalModel, KeepBest

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


# CEL: some reward has a function. Which function measures exact match is known only after import.
_MEASURES = f"self.rewards.exists(reward, has({member('reward', 'function')}))"
_STOPS_AT_EXACT_MATCH = (
    "has(self.schedule.warmStart) && has(self.schedule.warmStart.stopAtExactMatch)"
)


def _exact_match_goal(spec: RLHFJobSpec) -> float | None:
    warm_start = spec.schedule.warm_start
    return None if warm_start is None else warm_start.stop_at_exact_match


def _warm_start_has_evaluation_data(spec: RLHFJobSpec) -> list[Violation]:
    goal = _exact_match_goal(spec)
    has_data = spec.data.evaluation is not None or spec.data.train.builtin is not None
    return violation_if(goal is not None and not has_data, f"{goal} without data.evaluation")


def _warm_start_is_measured(spec: RLHFJobSpec) -> list[Violation]:
    return _unmeasured(spec) if _exact_match_goal(spec) is not None else []


def _best_checkpoint_is_measured(spec: RLHFJobSpec) -> list[Violation]:
    return _unmeasured(spec) if spec.checkpoint.keep_best is KeepBest.EXACT_MATCH else []


def _unmeasured(spec: RLHFJobSpec) -> list[Violation]:
    has_function = any(reward.function is not None for reward in spec.rewards)
    return violation_if(
        not has_function, ", ".join(reward.name for reward in spec.rewards) or "none"
    )


@dataclass(frozen=True)
class _Comparison:
    """A setting that compares evaluations by the metric of checkpoint.keepBest."""

    name: str
    field: str
    cel: str
    """CEL: the setting is made."""
    is_set: Callable[[RLHFJobSpec], bool]

    def has_data(self, spec: RLHFJobSpec) -> list[Violation]:
        """Find missing evaluation data."""
        # A builtin task brings its own evaluation data, which only rewards can score.
        has_data = spec.data.evaluation is not None or (
            spec.data.train.builtin is not None and bool(spec.rewards)
        )
        return violation_if(
            self.is_set(spec) and not has_data, f"{self.name} without data.evaluation"
        )

    def has_metric(self, spec: RLHFJobSpec) -> list[Violation]:
        """Find a missing metric."""
        is_wrong = self.is_set(spec) and spec.checkpoint.keep_best is KeepBest.NONE
        return violation_if(is_wrong, KeepBest.NONE.value)

    def has_rewards(self, spec: RLHFJobSpec) -> list[Violation]:
        """Find missing rewards."""
        needs_rewards = spec.checkpoint.keep_best is KeepBest.REWARD_MEAN
        is_wrong = self.is_set(spec) and needs_rewards and not spec.rewards
        return violation_if(is_wrong, f"{KeepBest.REWARD_MEAN.value} and no rewards")


_COMPARISONS = (
    _Comparison(
        "earlyStop",
        ".schedule.earlyStop",
        "has(self.schedule.earlyStop)",
        lambda spec: spec.schedule.early_stop is not None,
    ),
    _Comparison(
        f"finalModel: {FinalModel.BEST}",
        ".checkpoint.finalModel",
        f"self.checkpoint.finalModel == {text(FinalModel.BEST)}",
        lambda spec: spec.checkpoint.final_model is FinalModel.BEST,
    ),
)


def _comparison_rules(comparison: _Comparison) -> Iterator[Rule]:
    name = comparison.name
    yield Rule(
        holds=f"!({comparison.cel}) || has(self.data.evaluation) || "
        "(has(self.data.train.builtin) && self.rewards.size() > 0)",
        what=f"{name} compares evaluations, and there are none",
        do=f"add data.evaluation, or remove {name}",
        field=comparison.field,
        check=comparison.has_data,
    )
    yield Rule(
        holds=f"!({comparison.cel}) || self.checkpoint.keepBest != {text(KeepBest.NONE)}",
        what=f"{name} compares the metric of checkpoint.keepBest, and there is none",
        allowed="RewardMean, LengthMean or ExactMatch",
        do=f"choose one, or remove {name}",
        field=".checkpoint.keepBest",
        check=comparison.has_metric,
    )
    yield Rule(
        holds=f"!({comparison.cel}) || "
        f"self.checkpoint.keepBest != {text(KeepBest.REWARD_MEAN)} || self.rewards.size() > 0",
        what=f"{name} compares the mean reward, and nothing is rewarded",
        allowed="RewardMean with rewards",
        do=f"add a reward, choose another metric, or remove {name}",
        field=".checkpoint.keepBest",
        check=comparison.has_rewards,
    )


EVALUATION_RULES: tuple[Rule, ...] = (
    # A builtin task brings its own evaluation data.
    Rule(
        holds=f"!({_STOPS_AT_EXACT_MATCH}) || has(self.data.evaluation) || "
        "has(self.data.train.builtin)",
        what="exact match is measured on evaluation data, and there are none",
        do="add data.evaluation, or remove stopAtExactMatch",
        field=".schedule.warmStart.stopAtExactMatch",
        check=_warm_start_has_evaluation_data,
    ),
    Rule(
        holds=f"!({_STOPS_AT_EXACT_MATCH}) || {_MEASURES}",
        what="exact match is measured by a function, and no reward has one",
        allowed='a function with @measures("exact_match")',
        do="add one, if need be with weight: 0, or remove stopAtExactMatch",
        field=".schedule.warmStart.stopAtExactMatch",
        check=_warm_start_is_measured,
    ),
    Rule(
        holds=f"self.checkpoint.keepBest != {text(KeepBest.EXACT_MATCH)} || {_MEASURES}",
        what="exact match is measured by a function, and no reward has one",
        allowed='a function with @measures("exact_match")',
        do="add one, if need be with weight: 0, or choose another metric",
        field=".checkpoint.keepBest",
        check=_best_checkpoint_is_measured,
    ),
    *(rule for comparison in _COMPARISONS for rule in _comparison_rules(comparison)),
)
