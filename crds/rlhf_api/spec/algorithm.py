"""The algorithm of a job, with the settings of each type."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from rlhf_api.base import Contract, Entrypoint, Identifier
from rlhf_api.cel_literals import text
from rlhf_api.rules import Rule, violation_if
from rlhf_api.spec.algorithm_graph import AlgorithmGraph
from rlhf_api.spec.policy_loss import AlgorithmSettings
from rlhf_api.spec.presets import (
    DapoSettings,
    DpoSettings,
    GrpoSettings,
    OnlineDpoSettings,
    OpoSettings,
    PpoSettings,
    ReinforcePlusPlusSettings,
    ReMaxSettings,
    RewardModelSettings,
    RlooSettings,
    SafeRlhfSettings,
    SftSettings,
)

# A parameter of user code: a boolean, a number or a short text.
ParameterValue = bool | int | float | Annotated[str, Field(max_length=1024)]


class CustomSettings(Contract):
    """An algorithm of the user's own."""

    entrypoint: Entrypoint
    """The algorithm's class as `package.module:Class`, a subclass of rlhf_flow.Algorithm."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Passed to the class as keyword arguments."""


class AlgorithmType(StrEnum):
    """The algorithms that a manifest can name."""

    PPO = "PPO"
    """Proximal policy optimization with a critic."""
    GRPO = "GRPO"
    """Group relative policy optimization; Dr.GRPO, GSPO and CISPO are its options."""
    DAPO = "DAPO"
    """GRPO that samples prompts until enough of them have responses of different scores."""
    RLOO = "RLOO"
    """REINFORCE leave-one-out: the baseline is the mean of the prompt's other responses."""
    OPO = "OPO"
    """On-policy optimization with a length-weighted baseline."""
    REINFORCE_PLUS_PLUS = "REINFORCEPlusPlus"
    """REINFORCE++: rewards-to-go whitened over the batch, with or without a baseline."""
    REMAX = "ReMax"
    """REINFORCE with the greedy response as baseline."""
    SAFE_RLHF = "SafeRLHF"
    """PPO with a cost that stays below a budget."""
    DPO = "DPO"
    """Direct preference optimization on given pairs."""
    ONLINE_DPO = "OnlineDPO"
    """DPO on pairs of the policy's own responses."""
    SFT = "SFT"
    """Supervised fine-tuning on reference answers."""
    REWARD_MODEL = "RewardModel"
    """A reward model, from preference pairs."""
    CUSTOM = "Custom"
    """A class of your own."""

    @property
    def settings_field(self) -> str:
        """The field of `algorithm` with its settings, as manifests write it."""
        return _FIELDS[self]


# Field names: the type's name with its first word in lower case.
_FIELDS = {
    AlgorithmType.PPO: "ppo",
    AlgorithmType.GRPO: "grpo",
    AlgorithmType.DAPO: "dapo",
    AlgorithmType.RLOO: "rloo",
    AlgorithmType.OPO: "opo",
    AlgorithmType.REINFORCE_PLUS_PLUS: "reinforcePlusPlus",
    AlgorithmType.REMAX: "reMax",
    AlgorithmType.SAFE_RLHF: "safeRLHF",
    AlgorithmType.DPO: "dpo",
    AlgorithmType.ONLINE_DPO: "onlineDPO",
    AlgorithmType.SFT: "sft",
    AlgorithmType.REWARD_MODEL: "rewardModel",
    AlgorithmType.CUSTOM: "custom",
}


# Python names are those of AlgorithmType in lower case; wire names keep DPO, RLHF and the like.
def _alias(name: str) -> str:
    return name if name in ("type", "graph") else _FIELDS[AlgorithmType[name.upper()]]


def _only_with(kind: AlgorithmType) -> Rule:
    field = kind.settings_field
    return Rule(
        holds=f"!has(self.{field}) || self.type == {text(kind.value)}",
        what="settings of another algorithm",
        got=f"{text(f'{field} with type ')} + self.type",
        do=f"remove {field} or change type",
        field=f".{field}",
        check=lambda self: violation_if(
            self.member(kind) is not None and self.type is not kind,
            f"{field} with type {self.type.value}",
        ),
    )


class AlgorithmSpec(Contract):
    """The algorithm and its settings, in the field named like `type`."""

    model_config = ConfigDict(alias_generator=_alias)

    type: AlgorithmType
    """Type of algorithm: a built-in one, or Custom for a class of your own."""
    ppo: PpoSettings | None = None
    """Settings of PPO; only with type PPO."""
    grpo: GrpoSettings | None = None
    """Settings of GRPO; only with type GRPO."""
    dapo: DapoSettings | None = None
    """Settings of DAPO; only with type DAPO."""
    rloo: RlooSettings | None = None
    """Settings of RLOO; only with type RLOO."""
    opo: OpoSettings | None = None
    """Settings of OPO; only with type OPO."""
    reinforce_plus_plus: ReinforcePlusPlusSettings | None = None
    """Settings of REINFORCEPlusPlus; only with type REINFORCEPlusPlus."""
    remax: ReMaxSettings | None = None
    """Settings of ReMax; only with type ReMax."""
    safe_rlhf: SafeRlhfSettings | None = None
    """Settings of SafeRLHF; only with type SafeRLHF."""
    dpo: DpoSettings | None = None
    """Settings of DPO; only with type DPO."""
    online_dpo: OnlineDpoSettings | None = None
    """Settings of OnlineDPO; only with type OnlineDPO."""
    sft: SftSettings | None = None
    """Settings of SFT; only with type SFT."""
    reward_model: RewardModelSettings | None = None
    """Settings of RewardModel; only with type RewardModel."""
    custom: CustomSettings | None = None
    """Entry point and parameters; only, and always, with type Custom."""
    graph: AlgorithmGraph | None = None
    """Calls of its step, for planning without its code; only with type Custom. `rlhf fill` writes
    it. Default: the job can be planned only where its code can run."""

    validations: ClassVar = (
        *(_only_with(kind) for kind in AlgorithmType),
        Rule(
            holds="self.type != 'Custom' || has(self.custom)",
            what="type Custom without its entry point",
            do="add custom: {entrypoint: package.module:Class}",
            field=".custom",
            check=lambda self: violation_if(
                self.type is AlgorithmType.CUSTOM and self.custom is None
            ),
        ),
        Rule(
            holds="!has(self.graph) || self.type == 'Custom'",
            what="a graph of a built-in algorithm, whose graph follows from its settings",
            got="'graph with type ' + self.type",
            do="remove graph or change type",
            field=".graph",
            check=lambda self: violation_if(
                self.graph is not None and self.type is not AlgorithmType.CUSTOM,
                f"graph with type {self.type.value}",
            ),
        ),
    )

    def member(self, kind: AlgorithmType) -> AlgorithmSettings | CustomSettings | None:
        """The settings in the field of a type; None if it is not set."""
        settings: AlgorithmSettings | CustomSettings | None = getattr(self, kind.name.lower())
        return settings

    @property
    def settings(self) -> AlgorithmSettings | CustomSettings:
        """The settings in force: those of the manifest, or the type's defaults."""
        settings = self.member(self.type)
        return SETTINGS[self.type]() if settings is None else settings


# The settings of every built-in algorithm.
SETTINGS: dict[AlgorithmType, type[AlgorithmSettings]] = {
    AlgorithmType.PPO: PpoSettings,
    AlgorithmType.GRPO: GrpoSettings,
    AlgorithmType.DAPO: DapoSettings,
    AlgorithmType.RLOO: RlooSettings,
    AlgorithmType.OPO: OpoSettings,
    AlgorithmType.REINFORCE_PLUS_PLUS: ReinforcePlusPlusSettings,
    AlgorithmType.REMAX: ReMaxSettings,
    AlgorithmType.SAFE_RLHF: SafeRlhfSettings,
    AlgorithmType.DPO: DpoSettings,
    AlgorithmType.ONLINE_DPO: OnlineDpoSettings,
    AlgorithmType.SFT: SftSettings,
    AlgorithmType.REWARD_MODEL: RewardModelSettings,
}
