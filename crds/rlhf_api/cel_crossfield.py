"""The rules that hold between sections of a manifest, for the API server: those of `crossfield`."""

from __future__ import annotations

from rlhf_api.algorithm import AlgorithmType
from rlhf_api.cel import Rule, member, text, texts
from rlhf_api.checkpoint import KeepBest
from rlhf_api.crossfield import EXACT_MATCH_VERIFIER, ROLES

_ENTRYPOINT = member(member("reward", "function"), "entrypoint")
_MEASURES_EXACT_MATCH = (
    f"self.rewards.exists(reward, {_ENTRYPOINT} == {text(EXACT_MATCH_VERIFIER)})"
)
_STOPS_AT_EXACT_MATCH = (
    "has(self.schedule.warmStart) && has(self.schedule.warmStart.stopAtExactMatch)"
)
_POOLS = "self.resources.nodePools"
_TENSOR = "self.rollout.parallelism.tensor"
_SHAPE = "self.models['actor'].shape"
_DEVICES = f"{_POOLS}.map(pool, pool.nodes * pool.devicesPerNode).sum()"


def _roles_of(kind: AlgorithmType) -> Rule:
    return Rule(
        holds=f"self.algorithm.type != {text(kind.value)} || "
        f"self.models.all(role, role in {texts(ROLES[kind])})",
        what=f"a role that {kind.value} does not have",
        allowed=", ".join(ROLES[kind]),
        do="rename or remove it, or change the algorithm",
        field=".models",
    )


SPEC_RULES: tuple[Rule, ...] = (
    Rule(
        holds="'actor' in self.models",
        what="no actor among the models",
        do="add models.actor with its source",
        field=".models",
    ),
    Rule(
        holds="!('actor' in self.models) || !has(self.models['actor'].source.sameAs)",
        what="the actor cannot take its weights from another role",
        got="self.models['actor'].source.sameAs",
        do="give the actor's own source and let the other roles refer to it",
        field=".models",
    ),
    Rule(
        holds="self.models.all(role, role == 'actor' || "
        "!has(self.models[role].source.sameAs) || self.models.exists(other, other != role && "
        "other == self.models[role].source.sameAs && !has(self.models[other].source.sameAs)))",
        what="sameAs names no other role with a source of its own",
        do="name such a role",
        field=".models",
    ),
    *(_roles_of(kind) for kind in ROLES),
    Rule(
        holds="self.rewards.exists(reward, reward.weight != 0.0)",
        what="no reward counts, all have weight 0",
        do="give one a weight other than 0",
        field=".rewards",
    ),
    Rule(
        holds="self.algorithm.type != 'GRPO' || self.rollout.samplesPerPrompt >= 2",
        what="GRPO compares the samples of a prompt, so one sample always has advantage 0",
        allowed="2 or more",
        do="write samplesPerPrompt: 8",
        field=".rollout.samplesPerPrompt",
    ),
    Rule(
        holds="!has(self.algorithm.ppo) || "
        "self.algorithm.ppo.criticWarmupSteps < self.schedule.steps",
        what="the critic's warm-up leaves no step to train the actor",
        allowed="less than schedule.steps",
        do="lower it or raise schedule.steps",
        field=".algorithm.ppo.criticWarmupSteps",
    ),
    Rule(
        holds=f"!({_STOPS_AT_EXACT_MATCH}) || has(self.data.evaluation) || "
        "has(self.data.train.builtin)",
        what="exact match is measured on held-out data, and there is none",
        do="add data.evaluation, or remove stopAtExactMatch",
        field=".schedule.warmStart.stopAtExactMatch",
    ),
    Rule(
        holds=f"!({_STOPS_AT_EXACT_MATCH}) || {_MEASURES_EXACT_MATCH}",
        what="exact match is measured by its verifier, which is not among the rewards",
        allowed=EXACT_MATCH_VERIFIER,
        do="add it, if need be with weight: 0, or remove stopAtExactMatch",
        field=".schedule.warmStart.stopAtExactMatch",
    ),
    Rule(
        holds=f"self.checkpoint.keepBest != {text(KeepBest.EXACT_MATCH)} || "
        f"{_MEASURES_EXACT_MATCH}",
        what="exact match is measured by its verifier, which is not among the rewards",
        allowed=EXACT_MATCH_VERIFIER,
        do="add it, if need be with weight: 0, or choose another metric",
        field=".checkpoint.keepBest",
    ),
    Rule(
        holds="!has(self.data.train.maxRows) || "
        "self.data.train.maxRows >= self.schedule.promptsPerStep",
        what="fewer rows than one step takes",
        allowed="at least schedule.promptsPerStep",
        do="raise it or lower promptsPerStep",
        field=".data.train.maxRows",
    ),
    Rule(
        holds="!has(self.startDeadlineSeconds) || !has(self.activeDeadlineSeconds) || "
        "self.startDeadlineSeconds <= self.activeDeadlineSeconds",
        what="the deadline of the start lies behind that of the whole job",
        allowed="at most activeDeadlineSeconds",
        do="lower it or raise activeDeadlineSeconds",
        field=".startDeadlineSeconds",
    ),
    Rule(
        holds=f"{_POOLS}.size() == 0 || !has(self.placement.maxDevices) || "
        f"self.placement.maxDevices <= {_DEVICES}",
        what="more devices than the node pool has",
        allowed="at most nodes x devicesPerNode",
        do="lower it or add nodes",
        field=".placement.maxDevices",
    ),
    Rule(
        holds=f"{_POOLS}.size() == 0 || !has({_TENSOR}) || {_TENSOR} <= {_DEVICES}",
        what="one copy of the model needs more devices than the node pool has",
        allowed="at most nodes x devicesPerNode",
        do="lower it or add nodes",
        field=".rollout.parallelism.tensor",
    ),
    Rule(
        holds=f"!has({_TENSOR}) || !('actor' in self.models) || !has({_SHAPE}) || "
        f"{_SHAPE}.numAttentionHeads % {_TENSOR} == 0",
        what="the actor's query heads cannot be cut into so many equal parts",
        allowed="a divisor of models.actor.shape.numAttentionHeads",
        do="choose such a number or leave it to the planner",
        field=".rollout.parallelism.tensor",
    ),
)
"""In the order of `crossfield`. Unique names are a matter of the lists' keys."""
