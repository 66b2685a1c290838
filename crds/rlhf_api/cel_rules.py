"""The contract's rules about several fields, for the API server: the same as those of the models.

In Python they are validators of the models and `crossfield`; tests hold both against each other.
No rule lies at an object that may be left out and then is {}: the API server checks that default
before its fields get theirs.
"""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from rlhf_api.algorithm import AlgorithmSpec, AlgorithmType, PpoSettings
from rlhf_api.base import Contract
from rlhf_api.cel import Rule, exactly_one, text, texts
from rlhf_api.cel_crossfield import SPEC_RULES
from rlhf_api.cluster import URL_WITH_CREDENTIALS, GitCode
from rlhf_api.crossfield import RESERVED_REWARDS
from rlhf_api.data import DataSource
from rlhf_api.environment import EnvironmentVariable
from rlhf_api.exclusive import Alternatives
from rlhf_api.job import RLHFJobSpec
from rlhf_api.models import ModelShape, ModelSource
from rlhf_api.resources import NodePool
from rlhf_api.rewards import RewardSpec
from rlhf_api.schedule import ScheduleSpec


def rules_of(model: type[Contract]) -> list[Rule]:
    """The rules of a model, those of its bases first."""
    found: list[Rule] = []
    if issubclass(model, Alternatives):
        found.append(exactly_one([to_camel(name) for name in model.alternatives]))
    for kind, rules in RULES.items():
        if issubclass(model, kind):
            found += rules
    return found


def _settings_of(kind: AlgorithmType) -> Rule:
    field = kind.settings_field
    return Rule(
        holds=f"!has(self.{field}) || self.type == {text(kind.value)}",
        what="settings of another algorithm",
        got=f"{text(f'{field} beside type ')} + self.type",
        do=f"remove {field} or change type",
        field=f".{field}",
    )


def _part_of_a_dataset(name: str) -> Rule:
    return Rule(
        holds=f"!has(self.{name}) || has(self.huggingFace)",
        what=f"{name} is for huggingFace data only",
        do="remove it",
        field=f".{name}",
    )


RULES: dict[type[Contract], tuple[Rule, ...]] = {
    AlgorithmSpec: (
        *(_settings_of(kind) for kind in AlgorithmType),
        Rule(
            holds="self.type != 'Custom' || has(self.custom)",
            what="type Custom without its entry point",
            do="add custom: {entrypoint: package.module:Class}",
            field=".custom",
        ),
    ),
    PpoSettings: (
        Rule(
            holds="self.klPlacement != 'Loss' || !has(self.klEstimator) || "
            "self.klEstimator != 'K1'",
            what="a KL term without effect: the gradient of K1 in a loss is zero on average",
            got="self.klEstimator",
            allowed="K2 or K3",
            do="choose one, or klPlacement Reward",
            field=".klEstimator",
        ),
    ),
    DataSource: (_part_of_a_dataset("configuration"), _part_of_a_dataset("split")),
    EnvironmentVariable: (
        Rule(
            holds="self.value == '' || !has(self.valueFrom)",
            what="a value beside valueFrom",
            do="remove value or valueFrom",
            field=".valueFrom",
        ),
    ),
    GitCode: (
        Rule(
            holds=f"!self.url.matches({text(URL_WITH_CREDENTIALS)})",
            what="credentials in an address, which everybody reads who may read the job",
            do="remove them, and name a Secret in secretName",
            field=".url",
        ),
    ),
    ModelSource: (
        Rule(
            holds="!has(self.revision) || has(self.huggingFace)",
            what="revision without huggingFace",
            do="remove it, or name the model by its Hugging Face id",
            field=".revision",
        ),
    ),
    ModelShape: (
        Rule(
            holds="self.numAttentionHeads % self.numKeyValueHeads == 0",
            what="query heads must be a multiple of key and value heads",
            do="correct numAttentionHeads or numKeyValueHeads",
        ),
    ),
    RewardSpec: (
        Rule(
            holds=f"!(self.name in {texts(RESERVED_REWARDS)})",
            what="the metrics reward/mean and reward/std are those of the weighted sum",
            got="self.name",
            allowed="any other name",
            do="rename it",
            field=".name",
        ),
    ),
    ScheduleSpec: (
        Rule(
            holds="!has(self.miniBatchPrompts) || self.miniBatchPrompts <= self.promptsPerStep",
            what="a mini-batch larger than the step",
            allowed="at most promptsPerStep",
            do="make it smaller",
            field=".miniBatchPrompts",
        ),
    ),
    NodePool: (
        Rule(
            holds="self.name != 'head'",
            what="the name of the cluster's own head group",
            got="self.name",
            do="choose another name",
            field=".name",
        ),
        Rule(
            holds="self.device == 'GPU' || !has(self.gpu)",
            what="a GPU model in a pool of device CPU",
            got="self.gpu",
            do="remove it, or write device: GPU",
            field=".gpu",
        ),
    ),
    RLHFJobSpec: SPEC_RULES,
}
"""By model, as they are said to users."""
