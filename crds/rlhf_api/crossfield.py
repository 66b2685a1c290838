"""The rules that hold between sections of a manifest, all checked at once.

Rules inside one section are validators of its model. These need several sections; each is a
function that yields the problems it sees, and `_RULES` lists them. RLHFJobSpec calls
`cross_field_problems` when its fields are valid by themselves, so a spec that exists keeps every
rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rlhf_api.algorithm import AlgorithmType, PpoSettings
from rlhf_api.checkpoint import KeepBest
from rlhf_api.data import DataSource
from rlhf_api.problems import Problem
from rlhf_api.resources import Device

if TYPE_CHECKING:
    from rlhf_api.job import RLHFJobSpec

ROLES: dict[AlgorithmType, tuple[str, ...]] = {
    AlgorithmType.PPO: ("actor", "critic", "reference"),
    AlgorithmType.GRPO: ("actor", "reference"),
}
"""The roles of the built-in algorithms; a custom algorithm may have any."""


EXACT_MATCH_VERIFIER = "rlhf_runtime.rewards.exact_match:score"
"""The verifier whose mean on held-out prompts is the metric exact match."""
RESERVED_REWARDS = ("mean", "std")
"""Names that the metrics of the weighted sum have."""


class CrossFieldError(ValueError):
    """Several fields that are valid by themselves do not fit together; paths start at spec."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def cross_field_problems(spec: RLHFJobSpec) -> list[Problem]:
    """List everything that does not fit together; empty for a good spec."""
    return [problem for rule in _RULES for problem in rule(spec)]


def _problem(*path: str | int, what: str, got: str, allowed: str = "", do: str) -> Problem:
    return Problem(("spec", *path), what, got=got, allowed=allowed, do=do)


def _actor_has_a_source(spec: RLHFJobSpec) -> Iterator[Problem]:
    actor = spec.models.get("actor")
    if actor is None:
        yield _problem(
            "models",
            what="no actor among the models",
            got=", ".join(sorted(spec.models)),
            do="add models.actor with its source",
        )
    elif actor.source.same_as is not None:
        yield _problem(
            *("models", "actor", "source", "sameAs"),
            what="the actor cannot take its weights from another role",
            got=actor.source.same_as,
            do="give the actor's own source and let the other roles refer to it",
        )


def _same_as_names_a_source(spec: RLHFJobSpec) -> Iterator[Problem]:
    for role, model in spec.models.items():
        origin = model.source.same_as
        if origin is None or role == "actor":
            continue
        others = sorted(
            other
            for other, candidate in spec.models.items()
            if other != role and candidate.source.same_as is None
        )
        if origin not in others:
            yield _problem(
                *("models", role, "source", "sameAs"),
                what="sameAs names no other role with a source of its own",
                got=origin,
                allowed=", ".join(others),
                do="name such a role",
            )


def _roles_are_known(spec: RLHFJobSpec) -> Iterator[Problem]:
    known = ROLES.get(spec.algorithm.type)
    if known is None:
        return
    for role in sorted(set(spec.models) - set(known)):
        near = get_close_matches(role, known, n=1)
        yield _problem(
            *("models", role),
            what=f"{spec.algorithm.type.value} has no such role",
            got=role,
            allowed=", ".join(known),
            do=f"did you mean {near[0]}?" if near else "remove it or change the algorithm",
        )


def _names_are_unique(spec: RLHFJobSpec) -> Iterator[Problem]:
    names = [reward.name for reward in spec.rewards]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield _problem(
                *("rewards", index, "name"),
                what="a name given twice",
                got=name,
                do="give each a name of its own",
            )


def _rewards_do_not_pose_as_the_sum(spec: RLHFJobSpec) -> Iterator[Problem]:
    for index, reward in enumerate(spec.rewards):
        if reward.name in RESERVED_REWARDS:
            yield _problem(
                *("rewards", index, "name"),
                what="the metrics reward/mean and reward/std are those of the weighted sum",
                got=reward.name,
                allowed="any other name",
                do="rename it",
            )


def _rewards_have_weight(spec: RLHFJobSpec) -> Iterator[Problem]:
    if all(reward.weight == 0 for reward in spec.rewards):
        yield _problem(
            "rewards",
            what="no reward counts",
            got="weight 0 for all",
            do="give one a weight other than 0",
        )


def _groups_can_be_compared(spec: RLHFJobSpec) -> Iterator[Problem]:
    if spec.algorithm.type is AlgorithmType.GRPO and spec.rollout.samples_per_prompt < 2:
        yield _problem(
            *("rollout", "samplesPerPrompt"),
            what="GRPO compares the samples of a prompt, so one sample always has advantage 0",
            got="1",
            allowed="2 or more",
            do="write samplesPerPrompt: 8",
        )


def _actor_is_trained(spec: RLHFJobSpec) -> Iterator[Problem]:
    settings = spec.algorithm.settings
    if isinstance(settings, PpoSettings) and settings.critic_warmup_steps >= spec.schedule.steps:
        yield _problem(
            *("algorithm", "ppo", "criticWarmupSteps"),
            what="the critic's warm-up leaves no step to train the actor",
            got=f"{settings.critic_warmup_steps} of {spec.schedule.steps} steps",
            allowed=f"less than schedule.steps, {spec.schedule.steps}",
            do="lower it or raise schedule.steps",
        )


def _warm_start_can_be_measured(spec: RLHFJobSpec) -> Iterator[Problem]:
    warm_start = spec.schedule.warm_start
    if warm_start is None or warm_start.stop_at_exact_match is None:
        return
    if spec.data.evaluation is None and spec.data.train.builtin is None:
        yield _problem(
            *("schedule", "warmStart", "stopAtExactMatch"),
            what="exact match is measured on held-out data, and there is none",
            got=f"{warm_start.stop_at_exact_match:g} without data.evaluation",
            do="add data.evaluation, or remove stopAtExactMatch",
        )
    if not _measures_exact_match(spec):
        yield _problem(
            *("schedule", "warmStart", "stopAtExactMatch"),
            what="exact match is measured by its verifier, which is not among the rewards",
            got=", ".join(reward.function.entrypoint for reward in spec.rewards),
            allowed=EXACT_MATCH_VERIFIER,
            do="add it, if need be with weight: 0, or remove stopAtExactMatch",
        )


def _measures_exact_match(spec: RLHFJobSpec) -> bool:
    return any(reward.function.entrypoint == EXACT_MATCH_VERIFIER for reward in spec.rewards)


def _best_checkpoint_can_be_told(spec: RLHFJobSpec) -> Iterator[Problem]:
    if spec.checkpoint.keep_best is KeepBest.EXACT_MATCH and not _measures_exact_match(spec):
        yield _problem(
            *("checkpoint", "keepBest"),
            what="exact match is measured by its verifier, which is not among the rewards",
            got=", ".join(reward.function.entrypoint for reward in spec.rewards),
            allowed=EXACT_MATCH_VERIFIER,
            do="add it, if need be with weight: 0, or choose another metric",
        )


def _rows_fill_a_step(spec: RLHFJobSpec) -> Iterator[Problem]:
    train: DataSource = spec.data.train
    if train.max_rows is not None and train.max_rows < spec.schedule.prompts_per_step:
        yield _problem(
            *("data", "train", "maxRows"),
            what="fewer rows than one step takes",
            got=str(train.max_rows),
            allowed=f"at least schedule.promptsPerStep, {spec.schedule.prompts_per_step}",
            do="raise it or lower promptsPerStep",
        )


def _deadlines_are_ordered(spec: RLHFJobSpec) -> Iterator[Problem]:
    start, whole = spec.start_deadline_seconds, spec.active_deadline_seconds
    if start is not None and whole is not None and start > whole:
        yield _problem(
            "startDeadlineSeconds",
            what="the deadline of the start lies behind that of the whole job",
            got=str(start),
            allowed=f"at most activeDeadlineSeconds, {whole}",
            do="lower it or raise activeDeadlineSeconds",
        )


def _pools_are_sound(spec: RLHFJobSpec) -> Iterator[Problem]:
    for index, pool in enumerate(spec.resources.node_pools):
        if pool.name == "head":
            yield _problem(
                *("resources", "nodePools", index, "name"),
                what="the name of the cluster's own head group",
                got="head",
                do="choose another name",
            )
        if pool.device is Device.CPU and pool.gpu is not None:
            yield _problem(
                *("resources", "nodePools", index, "gpu"),
                what="a GPU model in a pool of device CPU",
                got=pool.gpu,
                do="remove it, or write device: GPU",
            )


def _devices_suffice(spec: RLHFJobSpec) -> Iterator[Problem]:
    pools = spec.resources.node_pools
    if not pools:
        return
    total = sum(pool.num_devices for pool in pools)
    terms = " + ".join(f"{pool.nodes} x {pool.devices_per_node} ({pool.name})" for pool in pools)
    allowed = f"at most {total} = {terms}"
    if spec.placement.max_devices is not None and spec.placement.max_devices > total:
        yield _problem(
            *("placement", "maxDevices"),
            what="more devices than the node pool has",
            got=str(spec.placement.max_devices),
            allowed=allowed,
            do="lower it or add nodes",
        )
    tensor = spec.rollout.parallelism.tensor
    if tensor is not None and tensor > total:
        yield _problem(
            *("rollout", "parallelism", "tensor"),
            what="one copy of the model needs more devices than the node pool has",
            got=str(tensor),
            allowed=allowed,
            do="lower it or add nodes",
        )


def _heads_are_cut_evenly(spec: RLHFJobSpec) -> Iterator[Problem]:
    actor, tensor = spec.models.get("actor"), spec.rollout.parallelism.tensor
    shape = None if actor is None else actor.shape
    if shape is not None and tensor is not None and shape.num_attention_heads % tensor:
        yield _problem(
            *("rollout", "parallelism", "tensor"),
            what="the actor's query heads cannot be cut into so many equal parts",
            got=str(tensor),
            allowed=f"a divisor of models.actor.shape.numAttentionHeads, "
            f"{shape.num_attention_heads}",
            do="choose such a number or leave it to the planner",
        )


_RULES: tuple[Callable[[RLHFJobSpec], Iterator[Problem]], ...] = (
    _actor_has_a_source,
    _same_as_names_a_source,
    _roles_are_known,
    _names_are_unique,
    _rewards_do_not_pose_as_the_sum,
    _rewards_have_weight,
    _groups_can_be_compared,
    _actor_is_trained,
    _warm_start_can_be_measured,
    _best_checkpoint_can_be_told,
    _rows_fill_a_step,
    _deadlines_are_ordered,
    _pools_are_sound,
    _devices_suffice,
    _heads_are_cut_evenly,
)
