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


def _fits(owner: str) -> str:
    """One copy of a model, cut as its owner's parallelism says, fits on the node pools' devices."""
    cuts = [f"{owner}.parallelism.{axis}" for axis in ("tensor", "pipeline")]
    copy = " * ".join(f"(has({cut}) ? {cut} : 1)" for cut in cuts)
    return f"{copy} <= {_DEVICES}"


def _enough_devices(holds: str, field: str) -> Rule:
    return Rule(
        holds=f"{_POOLS}.size() == 0 || {holds}",
        what="one copy of the model needs more devices than the node pools have",
        allowed="tensor x pipeline at most the sum of nodes x devicesPerNode",
        do="lower them or add nodes",
        field=field,
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
        what="more devices than the node pools have",
        allowed="at most the sum of nodes x devicesPerNode",
        do="lower it or add nodes",
        field=".placement.maxDevices",
    ),
    _enough_devices(f"self.models.all(role, {_fits('self.models[role]')})", ".models"),
    _enough_devices(_fits("self.rollout"), ".rollout.parallelism"),
)
"""In the order of `crossfield`. Unique names are a matter of the lists' keys."""
