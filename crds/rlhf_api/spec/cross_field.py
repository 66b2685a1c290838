"""Rules between sections of a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rlhf_api.cel_literals import text
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.algorithm_rules import ALGORITHM_RULES
from rlhf_api.spec.evaluation_rules import EVALUATION_RULES
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.objective_rules import OBJECTIVE_RULES
from rlhf_api.spec.placement import PLACEMENT_RULES, PlacementType
from rlhf_api.spec.rewards import MODEL_ROLE

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


_MODEL_ROLE = f"reward.name + {text(MODEL_ROLE)}"
_PREFERENCES = "self.data.train.preferences"
_POOLS = "self.resources.nodePools"
_TENSOR = "self.rollout.parallelism.tensor"
_SHAPE = "self.models['actor'].shape"
_PARALLELISM = "self.models[role].training.parallelism"


# CEL: a size of a role's parallelism; 1 if the planner chooses it.
def _ranks(size: str) -> str:
    field = f"{_PARALLELISM}.{size}"
    return f"(has({field}) ? {field} : 1)"


_DEVICES = f"{_POOLS}.map(pool, pool.nodes * pool.devicesPerNode).sum()"


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


def _pools_have_one_device(spec: RLHFJobSpec) -> Iterator[Violation]:
    first, *others = spec.resources.node_pools or (None,)
    for index, pool in enumerate(others, start=1):
        if first is not None and pool.device is not first.device:
            path = ("resources", "nodePools", index, "device")
            yield Violation(
                pool.device.value, path, f"{first.device.value}, as in pool {first.name}"
            )


def _rewards_have_weight(spec: RLHFJobSpec) -> list[Violation]:
    all_zero = bool(spec.rewards) and all(reward.weight == 0 for reward in spec.rewards)
    return violation_if(all_zero, "weight 0 for all")


def _rows_fill_a_step(spec: RLHFJobSpec) -> list[Violation]:
    rows, needed = spec.data.train.max_rows, spec.schedule.prompts_per_step
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


def _mean_within_limit(kind: str) -> Callable[[RLHFJobSpec], list[Violation]]:
    """A check of expectedPromptTokens or expectedResponseTokens."""

    def check(spec: RLHFJobSpec) -> list[Violation]:
        expected = getattr(spec.rollout, f"expected_{kind}_tokens")
        limit = getattr(spec.rollout, f"max_{kind}_tokens")
        is_more = expected is not None and expected > limit
        return violation_if(is_more, expected, f"at most max{kind.title()}Tokens, {limit}")

    return check


def _limit_within_pools(spec: RLHFJobSpec) -> list[Violation]:
    return _too_many_devices(spec, spec.placement.max_devices)


def _engine_fits(spec: RLHFJobSpec) -> list[Violation]:
    return _too_many_devices(spec, spec.rollout.parallelism.tensor)


def _too_many_devices(spec: RLHFJobSpec, devices: int | None) -> list[Violation]:
    pools = spec.resources.node_pools
    total = sum(pool.num_devices for pool in pools)
    terms = " + ".join(f"{pool.nodes} x {pool.devices_per_node} ({pool.name})" for pool in pools)
    too_many = bool(pools) and devices is not None and devices > total
    return violation_if(too_many, devices, f"at most {total} = {terms}")


def _models_fit(spec: RLHFJobSpec) -> Iterator[Violation]:
    pools = spec.resources.node_pools
    largest = max((pool.num_devices for pool in pools), default=0)
    sizes = ", ".join(f"{pool.num_devices} ({pool.name})" for pool in pools)
    # Groups of a manual placement may set other sizes.
    is_manual = spec.placement.type is PlacementType.MANUAL
    for role, model in spec.models.items():
        cut = model.training.parallelism
        if pools and not is_manual and model.uses_megatron and cut.num_ranks > largest:
            yield Violation(
                f"tensor {cut.tensor} x pipeline {cut.pipeline} = {cut.num_ranks}",
                ("models", role, "training", "parallelism"),
                f"at most {largest}, of pools with {sizes}",
            )


def _heads_are_cut_evenly(spec: RLHFJobSpec) -> list[Violation]:
    actor, tensor = spec.models.get("actor"), spec.rollout.parallelism.tensor
    if actor is None or actor.shape is None or tensor is None:
        return []
    heads = actor.shape.num_attention_heads
    allowed = f"a divisor of models.actor.shape.numAttentionHeads, {heads}"
    return violation_if(heads % tensor != 0, tensor, allowed)


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
        holds="self.rewards.size() == 0 || self.rewards.exists(reward, reward.weight != 0.0)",
        what="no reward counts, all have weight 0",
        do="give one a weight other than 0",
        field=".rewards",
        check=_rewards_have_weight,
    ),
    *EVALUATION_RULES,
    Rule(
        holds="!has(self.data.train.maxRows) || "
        "self.data.train.maxRows >= self.schedule.promptsPerStep",
        what="fewer rows than one step takes",
        allowed="at least schedule.promptsPerStep",
        do="raise it or lower promptsPerStep",
        field=".data.train.maxRows",
        check=_rows_fill_a_step,
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
    Rule(
        holds=f"{_POOLS}.size() == 0 || !has(self.placement.maxDevices) || "
        f"self.placement.maxDevices <= {_DEVICES}",
        what="more devices than the node pools have",
        allowed="at most nodes x devicesPerNode",
        do="lower it or add nodes",
        field=".placement.maxDevices",
        check=_limit_within_pools,
    ),
    Rule(
        holds=f"{_POOLS}.size() == 0 || !has({_TENSOR}) || {_TENSOR} <= {_DEVICES}",
        what="one copy of the model needs more devices than the node pools have",
        allowed="at most nodes x devicesPerNode",
        do="lower it or add nodes",
        field=".rollout.parallelism.tensor",
        check=_engine_fits,
    ),
    # A replica never spans pools, so some pool must be large enough for it.
    Rule(
        holds=f"{_POOLS}.size() == 0 || self.placement.type == "
        f"{text(PlacementType.MANUAL)} || self.models.all(role, "
        f"self.models[role].training.engine != {text(TrainingEngineType.MEGATRON)} || "
        f"{_POOLS}.exists(pool, "
        f"{_ranks('tensor')} * {_ranks('pipeline')} <= pool.nodes * pool.devicesPerNode))",
        what="one copy of a model needs more devices than any node pool has",
        allowed="at most nodes x devicesPerNode for tensor x pipeline",
        do="lower tensor or pipeline, or add nodes",
        field=".models",
        check=_models_fit,
    ),
    # vLLM splits attention by query heads; key and value heads are replicated if there are too few.
    Rule(
        holds=f"!has({_TENSOR}) || !('actor' in self.models) || !has({_SHAPE}) || "
        f"{_SHAPE}.numAttentionHeads % {_TENSOR} == 0",
        what="the actor's query heads cannot be divided evenly among the tensor ranks",
        allowed="a divisor of models.actor.shape.numAttentionHeads",
        do="choose such a number or leave it to the planner",
        field=".rollout.parallelism.tensor",
        check=_heads_are_cut_evenly,
    ),
    Rule(
        holds=f"{_POOLS}.all(pool, pool.device == {_POOLS}[0].device)",
        what="pools of different devices",
        allowed="the same device in all",
        do="let all roles compute on GPUs, or all on CPUs",
        field=".resources.nodePools",
        check=_pools_have_one_device,
    ),
    *PLACEMENT_RULES,
    *OBJECTIVE_RULES,
)
