"""Rules between sections of a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rlhf_api.cel_literals import text
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.algorithm_rules import ALGORITHM_RULES
from rlhf_api.spec.device_rules import DEVICE_RULES
from rlhf_api.spec.evaluation_rules import EVALUATION_RULES
from rlhf_api.spec.objective_rules import OBJECTIVE_RULES
from rlhf_api.spec.placement import PLACEMENT_RULES
from rlhf_api.spec.rewards import MODEL_ROLE

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


_MODEL_ROLE = f"reward.name + {text(MODEL_ROLE)}"
_PREFERENCES = "self.data.train.preferences"


def _warm_start_has_answers(spec: RLHFJobSpec) -> list[Violation]:
    has_pairs = spec.data.train.preferences is not None
    return violation_if(
        spec.schedule.warm_start is not None and has_pairs, "data.train.preferences"
    )


def _actor_has_own_source(spec: RLHFJobSpec) -> Iterator[Violation]:
    actor = spec.models.get("actor")
    if actor is not None and actor.source.same_as is not None:
        yield Violation(actor.source.same_as, ("models", "actor", "source", "sameAs"))


def _same_as_names_a_source(spec: RLHFJobSpec) -> Iterator[Violation]:
    for role, model in spec.models.items():
        origin = model.source.same_as
        others = sorted(
            other
            for other, described in spec.manifest_models.items()
            if other != role and described.model.source.same_as is None
        )
        if origin is not None and role != "actor" and origin not in others:
            yield Violation(origin, ("models", role, "source", "sameAs"), ", ".join(others))


def _reward_models_have_own_roles(spec: RLHFJobSpec) -> Iterator[Violation]:
    for index, reward in enumerate(spec.rewards):
        if reward.model is not None and reward.model_role in spec.models:
            yield Violation(reward.model_role, ("rewards", index, "name"))


def _names_are_unique(spec: RLHFJobSpec) -> Iterator[Violation]:
    names = {
        ("rewards",): [reward.name for reward in spec.rewards],
        ("resources", "nodePools"): [pool.name for pool in spec.resources.node_pools],
    }
    for path, listed in names.items():
        for index, name in enumerate(listed):
            if name in listed[:index]:
                yield Violation(name, (*path, index, "name"))


def _sources_exist(spec: RLHFJobSpec) -> Iterator[Violation]:
    splits = [spec.data.train, *([] if spec.data.evaluation is None else [spec.data.evaluation])]
    names = [source.name for split in splits for source in split.sources or () if source.name]
    for index, reward in enumerate(spec.rewards):
        for number, name in enumerate(reward.sources):
            if name not in names:
                allowed = ", ".join(dict.fromkeys(names)) or "none: no source has a name"
                yield Violation(name, ("rewards", index, "sources", number), allowed)


def _environments_exist(spec: RLHFJobSpec) -> Iterator[Violation]:
    if spec.rollout.environment is None:
        for index, reward in enumerate(spec.rewards):
            if reward.environment is not None:
                yield Violation(reward.name, ("rewards", index, "environment"))


def _rewards_have_weight(spec: RLHFJobSpec) -> list[Violation]:
    all_zero = bool(spec.rewards) and all(reward.weight == 0 for reward in spec.rewards)
    return violation_if(all_zero, "weight 0 for all")


def _rows_fill_a_step(spec: RLHFJobSpec) -> list[Violation]:
    return _too_few_rows(spec, spec.data.train.max_rows)


def _generator_fills_a_step(spec: RLHFJobSpec) -> list[Violation]:
    source = spec.data.train.reasoning_gym
    return _too_few_rows(spec, None if source is None else source.size)


def _too_few_rows(spec: RLHFJobSpec, rows: int | None) -> list[Violation]:
    needed = spec.schedule.prompts_per_step
    is_short = rows is not None and rows < needed
    return violation_if(is_short, rows, f"at least schedule.promptsPerStep, {needed}")


def _rows_fill_updates(spec: RLHFJobSpec) -> list[Violation]:
    rows = None if spec.data.pretraining is None else spec.data.pretraining.rows_per_step
    updates = spec.schedule.updates_per_epoch
    is_short = rows is not None and rows < updates
    return violation_if(is_short, rows, f"at least {updates}, one for each mini-batch")


def _deadlines_are_ordered(spec: RLHFJobSpec) -> list[Violation]:
    start, active = spec.start_deadline_seconds, spec.active_deadline_seconds
    is_late = start is not None and active is not None and start > active
    return violation_if(is_late, start, f"at most activeDeadlineSeconds, {active}")


def _one_time_to_live(spec: RLHFJobSpec) -> list[Violation]:
    own, deprecated = spec.cluster_ttl_seconds, spec.ttl_seconds_after_finished
    differs = own is not None and deprecated not in (0, own)
    return violation_if(differs, deprecated, f"clusterTTLSeconds, {own}")


def _mean_within_limit(kind: str) -> Callable[[RLHFJobSpec], list[Violation]]:
    """A check of expectedPromptTokens or expectedResponseTokens."""

    def check(spec: RLHFJobSpec) -> list[Violation]:
        expected = getattr(spec.rollout, f"expected_{kind}_tokens")
        limit = getattr(spec.rollout, f"max_{kind}_tokens")
        is_more = expected is not None and expected > limit
        return violation_if(is_more, expected, f"at most max{kind.title()}Tokens, {limit}")

    return check


# All rules of the spec, in the order of messages.
SPEC_RULES: tuple[Rule, ...] = (
    *ALGORITHM_RULES,
    # Models.
    Rule(
        holds="!('actor' in self.models) || !has(self.models['actor'].source.sameAs)",
        what="the actor cannot take its weights from another role",
        got="self.models['actor'].source.sameAs",
        do="give the actor's own source and let the other roles refer to it",
        field=".models",
        check=_actor_has_own_source,
    ),
    # Chains of sameAs are not allowed, so a role's weights are always one step away. The second
    # part of the condition accepts the model of a reward.
    Rule(
        holds="self.models.all(role, role == 'actor' || "
        "!has(self.models[role].source.sameAs) || self.models.exists(other, other != role && "
        "other == self.models[role].source.sameAs && !has(self.models[other].source.sameAs)) || "
        "self.rewards.exists(reward, has(reward.model) && "
        f"{_MODEL_ROLE} == self.models[role].source.sameAs))",
        what="sameAs does not name another role with a source of its own",
        do="name such a role",
        field=".models",
        check=_same_as_names_a_source,
    ),
    # The role of a reward's model is <name>_model, so it must not be in models as well.
    Rule(
        holds=f"self.rewards.all(reward, !has(reward.model) || !({_MODEL_ROLE} in self.models))",
        what="a reward's model and an entry of models are the same role",
        allowed="a name for which models has no entry <name>_model",
        do="rename the reward, or remove the entry of models",
        field=".rewards",
        check=_reward_models_have_own_roles,
    ),
    # The Kubernetes schema states this by the keys of its lists.
    Rule(
        holds="",
        what="a name that is used twice",
        do="give each a name of its own",
        check=_names_are_unique,
    ),
    # Rewards, data and the warm start.
    Rule(
        holds=f"!has(self.schedule.warmStart) || !has({_PREFERENCES})",
        what="a warm start takes reference answers, and the data are pairs of responses",
        do="remove warmStart, or preferences",
        field=".schedule.warmStart",
        check=_warm_start_has_answers,
    ),
    Rule(
        holds="self.rewards.all(reward, reward.sources.all(name, "
        "has(self.data.train.sources) && "
        "self.data.train.sources.exists(source, has(source.name) && source.name == name) || "
        "has(self.data.evaluation) && has(self.data.evaluation.sources) && "
        "self.data.evaluation.sources.exists(source, has(source.name) && source.name == name)))",
        what="a reward for a data source that does not exist",
        do="correct the name, or give a source in data this name",
        field=".rewards",
        check=_sources_exist,
    ),
    Rule(
        holds="has(self.rollout.environment) || self.rewards.all(reward, !has(reward.environment))",
        what="a reward of an environment, and there is none",
        allowed="environment with rollout.environment",
        do="name the environment in rollout.environment, or remove the reward",
        field=".rewards",
        check=_environments_exist,
    ),
    Rule(
        holds="self.rewards.size() == 0 || self.rewards.exists(reward, reward.weight != 0.0)",
        what="no reward counts, all have weight 0",
        do="give one a weight other than 0",
        field=".rewards",
        check=_rewards_have_weight,
    ),
    *EVALUATION_RULES,
    *(
        Rule(
            holds=f"!has(self.data.train.{parent}) || "
            f"self.data.train.{field} >= self.schedule.promptsPerStep",
            what="fewer rows than one step takes",
            allowed="at least schedule.promptsPerStep",
            do="raise it or lower promptsPerStep",
            field=f".data.train.{field}",
            check=check,
        )
        for parent, field, check in (
            ("maxRows", "maxRows", _rows_fill_a_step),
            ("reasoningGym", "reasoningGym.size", _generator_fills_a_step),
        )
    ),
    # Every mini-batch needs a row: rowsPerStep >= promptsPerStep / miniBatchPrompts, without a
    # division.
    Rule(
        holds="!has(self.data.pretraining) || !has(self.data.pretraining.rowsPerStep) || "
        "!has(self.schedule.miniBatchPrompts) || self.data.pretraining.rowsPerStep * "
        "self.schedule.miniBatchPrompts >= self.schedule.promptsPerStep",
        what="fewer rows per step than its updates",
        allowed="at least promptsPerStep / miniBatchPrompts",
        do="raise it or miniBatchPrompts",
        field=".data.pretraining.rowsPerStep",
        check=_rows_fill_updates,
    ),
    # Deadlines and lengths.
    Rule(
        holds="!has(self.startDeadlineSeconds) || !has(self.activeDeadlineSeconds) || "
        "self.startDeadlineSeconds <= self.activeDeadlineSeconds",
        what="the deadline of the start is later than that of the job",
        allowed="at most activeDeadlineSeconds",
        do="lower it or raise activeDeadlineSeconds",
        field=".startDeadlineSeconds",
        check=_deadlines_are_ordered,
    ),
    # A deprecated field may stay as long as it says the same.
    Rule(
        holds="!has(self.clusterTTLSeconds) || self.ttlSecondsAfterFinished == 0 || "
        "self.clusterTTLSeconds == self.ttlSecondsAfterFinished",
        what="two times for which the cluster is kept",
        do="remove ttlSecondsAfterFinished, which is deprecated",
        field=".ttlSecondsAfterFinished",
        check=_one_time_to_live,
    ),
    *(
        Rule(
            holds=f"!has(self.rollout.expected{name}Tokens) || "
            f"self.rollout.expected{name}Tokens <= self.rollout.max{name}Tokens",
            what="a mean length above the limit",
            allowed=f"at most max{name}Tokens",
            do="lower it",
            field=f".rollout.expected{name}Tokens",
            check=_mean_within_limit(name.lower()),
        )
        for name in ("Prompt", "Response")
    ),
    *DEVICE_RULES,
    *PLACEMENT_RULES,
    *OBJECTIVE_RULES,
)
