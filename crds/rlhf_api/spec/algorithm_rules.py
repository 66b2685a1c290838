"""Rules on what a built-in algorithm needs in other sections of the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rlhf_api.cel_literals import cel_map, text, texts
from rlhf_api.problems import FieldPath
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.algorithm import SETTINGS, AlgorithmType
from rlhf_api.spec.policy_loss import AlgorithmSettings
from rlhf_api.spec.presets import PpoSettings
from rlhf_api.spec.row_sources import TrainOn
from rlhf_api.spec.stopping import CONVERSATION_REASONS, StopAction, StopReason
from rlhf_api.spec.truncation import is_truncated

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


# The built-in algorithms whose settings satisfy a predicate.
def _kinds(predicate: Callable[[type[AlgorithmSettings]], bool]) -> tuple[AlgorithmType, ...]:
    return tuple(kind for kind, settings in SETTINGS.items() if predicate(settings))


_SCORING = _kinds(lambda settings: bool(settings.reward_roles))
_ON_PAIRS = _kinds(lambda settings: settings.takes_pairs)
_ON_PROMPTS = _kinds(lambda settings: not settings.takes_pairs)
_ON_ANSWERS = _kinds(lambda settings: settings.takes_answers)
_ON_DATA = _kinds(lambda settings: settings.takes_pairs or settings.takes_answers)
_WITHOUT_TURN_CREDIT = (AlgorithmType.ONLINE_DPO, AlgorithmType.CUSTOM)
_GENERATING = tuple(kind for kind in SETTINGS if kind not in _ON_DATA)
_COMPARING = _kinds(lambda settings: settings.compares_samples)
_WITH_CRITIC = _kinds(lambda settings: issubclass(settings, PpoSettings))

_IS_CUSTOM = f"self.algorithm.type == {text(AlgorithmType.CUSTOM)}"
_ROLES = cel_map({kind.value: texts(settings.roles) for kind, settings in SETTINGS.items()})
_ANSWERS = (
    "has(self.data.train.answerField) || has(self.data.train.builtin) || "
    "has(self.data.train.reasoningGym) || has(self.data.train.sources) && "
    "self.data.train.sources.all(source, "
    "has(source.answerField) || has(source.builtin) || has(source.reasoningGym))"
)
_SAFE = "self.algorithm.safeRLHF"
_PREFERENCES = "self.data.train.preferences"
_ALL_ANSWERS = text(TrainOn.ALL_ANSWERS)
_TRAINS_ALL_ANSWERS = (
    f"(self.data.train.trainOn == {_ALL_ANSWERS} || has(self.data.train.sources) && "
    "self.data.train.sources.exists(source, has(source.trainOn) && "
    f"source.trainOn == {_ALL_ANSWERS}))"
)
_ON_STOP = "self.rollout.onStop"
# ContextLimit has no default.
_ACTIONS = f"{_ON_STOP}.EndToken, {_ON_STOP}.StopText, {_ON_STOP}.TokenLimit"


def _is_one_of(kinds: Sequence[AlgorithmType]) -> str:
    return f"self.algorithm.type in {texts([kind.value for kind in kinds])}"


def _has_main_model(spec: RLHFJobSpec) -> Iterator[Violation]:
    settings = SETTINGS.get(spec.algorithm.type)
    if settings is not None and settings.roles[0] not in spec.models:
        first = settings.roles[0]
        got = ", ".join(sorted(spec.models))
        yield Violation(got, allowed=first, do=f"add models.{first} with its source")


def _models_have_roles(spec: RLHFJobSpec) -> Iterator[Violation]:
    settings = SETTINGS.get(spec.algorithm.type)
    if settings is None:
        return
    for role in sorted(set(spec.models) - set(settings.roles)):
        near = get_close_matches(role, settings.roles, n=1)
        do = f"did you mean {near[0]}?" if near else ""
        yield Violation(role, ("models", role), ", ".join(settings.roles), do)


def _has_rewards(spec: RLHFJobSpec) -> list[Violation]:
    return violation_if(spec.algorithm.type in _SCORING and not spec.rewards, "none")


def _has_reward_and_cost(spec: RLHFJobSpec) -> list[Violation]:
    roles = sorted({reward.role for reward in spec.rewards})
    # No rewards at all is the violation of another rule.
    has_both = {"reward", "cost"} <= set(roles)
    is_safe = spec.algorithm.type is AlgorithmType.SAFE_RLHF
    return violation_if(is_safe and bool(roles) and not has_both, f"only {', '.join(roles)}")


def _pretraining_has_rows(spec: RLHFJobSpec) -> list[Violation]:
    safe = spec.algorithm.safe_rlhf
    weight = 0.0 if safe is None else safe.pretraining_weight
    return violation_if(weight > 0 and spec.data.pretraining is None, f"{weight:g}")


def _has_no_pairs(spec: RLHFJobSpec) -> list[Violation]:
    has_pairs = spec.data.train.preferences is not None
    return violation_if(spec.algorithm.type in _ON_PROMPTS and has_pairs, spec.algorithm.type.value)


def _has_pairs(spec: RLHFJobSpec) -> list[Violation]:
    has_pairs = spec.data.train.preferences is not None
    return violation_if(spec.algorithm.type in _ON_PAIRS and not has_pairs, "rows of prompts")


def _trains_no_conversations(spec: RLHFJobSpec) -> Iterator[Violation]:
    if spec.algorithm.type not in _GENERATING or spec.schedule.warm_start is not None:
        return
    where: FieldPath = ("data", "train")
    train, got = spec.data.train, f"{TrainOn.ALL_ANSWERS.value} with {spec.algorithm.type.value}"
    if train.train_on is TrainOn.ALL_ANSWERS:
        yield Violation(got, (*where, "trainOn"))
    for index, source in enumerate(train.sources or ()):
        if source.train_on is TrainOn.ALL_ANSWERS:
            yield Violation(got, (*where, "sources", index, "trainOn"))


def _has_answers(spec: RLHFJobSpec) -> list[Violation]:
    train = spec.data.train
    if spec.algorithm.type not in _ON_ANSWERS or train.has_answers:
        return []
    parts = enumerate(train.parts)
    without = ", ".join(f"sources[{index}]" for index, part in parts if not part.has_answers)
    return [Violation(f"rows of prompts{f' in {without}' if train.sources else ''}")]


def _saved_pairs_have_one_prompt_field(spec: RLHFJobSpec) -> Iterator[Violation]:
    settings = spec.algorithm.online_dpo
    if settings is not None and settings.save_pairs:
        for index, source in enumerate(spec.data.train.sources or ()):
            if source.prompt_field is not None:
                path = ("data", "train", "sources", index, "promptField")
                yield Violation(source.prompt_field, path)


def _groups_can_be_compared(spec: RLHFJobSpec) -> list[Violation]:
    samples = spec.rollout.samples_per_prompt
    return violation_if(spec.algorithm.type in _COMPARING and samples < 2, samples)


def _group_has_a_baseline(spec: RLHFJobSpec) -> list[Violation]:
    settings, samples = spec.algorithm.reinforce_plus_plus, spec.rollout.samples_per_prompt
    return violation_if(settings is not None and settings.group_baseline and samples < 2, samples)


def _responses_are_generated(spec: RLHFJobSpec) -> list[Violation]:
    on_stop, kind = spec.rollout.on_stop, spec.algorithm.type
    is_used = on_stop.context_limit is not None or on_stop.has_other_than(StopAction.TRAIN)
    return violation_if(is_used and kind in _ON_DATA, kind.value)


def _conversations_are_generated(spec: RLHFJobSpec) -> list[Violation]:
    kind = spec.algorithm.type
    return violation_if(spec.rollout.environment is not None and kind in _ON_DATA, kind.value)


def _rewards_of_turns_are_used(spec: RLHFJobSpec) -> list[Violation]:
    environment, kind = spec.rollout.environment, spec.algorithm.type
    is_set = environment is not None and environment.turn_credit is not None
    return violation_if(is_set and kind in _WITHOUT_TURN_CREDIT, kind.value)


def _pairs_are_not_masked(spec: RLHFJobSpec) -> list[Violation]:
    is_pair = spec.algorithm.type is AlgorithmType.ONLINE_DPO
    return violation_if(is_pair and spec.rollout.on_stop.has(StopAction.MASK))


def _sampling_exists(spec: RLHFJobSpec) -> Iterator[Violation]:
    if spec.algorithm.type in _ON_DATA:
        for field in spec.rollout.truncation.fields:
            yield Violation(field, ("rollout", field))


def _actor_is_trained(kind: AlgorithmType) -> Rule:
    field = f"algorithm.{kind.settings_field}"

    def check(spec: RLHFJobSpec) -> list[Violation]:
        settings, steps = spec.algorithm.member(kind), spec.schedule.steps
        warmup = settings.critic_warmup_steps if isinstance(settings, PpoSettings) else 0
        return violation_if(
            warmup >= steps, f"{warmup} of {steps} steps", f"less than schedule.steps, {steps}"
        )

    return Rule(
        holds=f"!has(self.{field}) || self.{field}.criticWarmupSteps < self.schedule.steps",
        what="the critic's warm-up leaves no step to train the actor",
        allowed="less than schedule.steps",
        do="lower it or raise schedule.steps",
        field=f".{field}.criticWarmupSteps",
        check=check,
    )


# Rules for all types except Custom.
ALGORITHM_RULES: tuple[Rule, ...] = (
    # Models. Roles of a custom algorithm are known only after its code is traced.
    Rule(
        holds=f"{_IS_CUSTOM} || {_ROLES}[self.algorithm.type][0] in self.models",
        what="the algorithm's main model is missing",
        do="add models.actor with its source; for type RewardModel models.reward_model",
        field=".models",
        check=_has_main_model,
    ),
    Rule(
        holds=f"{_IS_CUSTOM} || self.models.all(role, role in {_ROLES}[self.algorithm.type])",
        what="a role that the algorithm does not have",
        do="rename or remove it, or change the algorithm; reward models belong in rewards[].model",
        field=".models",
        check=_models_have_roles,
    ),
    # Rewards and data.
    Rule(
        holds=f"!({_is_one_of(_SCORING)}) || self.rewards.size() > 0",
        what="the algorithm learns from rewards, and there are none",
        allowed="at least one",
        do="add rewards: [{function: {entrypoint: package.module:function}}]",
        field=".rewards",
        check=_has_rewards,
    ),
    Rule(
        holds=f"!({_is_one_of(_ON_PROMPTS)}) || !has({_PREFERENCES})",
        what="the algorithm takes prompts, not pairs of responses",
        do="remove preferences, or change the algorithm",
        field=".data.train.preferences",
        check=_has_no_pairs,
    ),
    Rule(
        holds=f"!({_is_one_of(_ON_PAIRS)}) || has({_PREFERENCES})",
        what="the algorithm takes pairs of responses, and there are none",
        do="add preferences with chosenField and rejectedField, or change the algorithm",
        field=".data.train.preferences",
        check=_has_pairs,
    ),
    Rule(
        holds=f"!({_is_one_of(_ON_ANSWERS)}) || {_ANSWERS}",
        what="the algorithm takes reference answers, and there are none",
        do="name their column by answerField (of conversations that of promptField), or change the "
        "algorithm",
        field=".data.train.answerField",
        check=_has_answers,
    ),
    Rule(
        holds=f"!({_is_one_of(_GENERATING)}) || has(self.schedule.warmStart) || "
        f"!{_TRAINS_ALL_ANSWERS}",
        what="the algorithm trains on responses that it generates, not on the data's conversations",
        allowed="LastAnswer, or a warm start on them, or SFT, DPO, RewardModel and Custom",
        do="remove trainOn, add schedule.warmStart, or change the algorithm",
        field=".data.train.trainOn",
        check=_trains_no_conversations,
    ),
    Rule(
        holds="!has(self.algorithm.onlineDPO) || !self.algorithm.onlineDPO.savePairs || "
        "!has(self.data.train.sources) || "
        "!self.data.train.sources.exists(source, has(source.promptField))",
        what="saved pairs take the prompt from one column of all sources",
        do="set promptField beside sources, and give the columns of all sources that name",
        field=".data.train.sources",
        check=_saved_pairs_have_one_prompt_field,
    ),
    Rule(
        holds=f"self.algorithm.type != {text(AlgorithmType.SAFE_RLHF)} || self.rewards.size() == 0 "
        "|| (self.rewards.exists(reward, reward.role == 'reward') && "
        "self.rewards.exists(reward, reward.role == 'cost'))",
        what="SafeRLHF learns from a reward and a cost, and one is missing",
        allowed="rewards of role reward and of role cost",
        do="add a reward with role: cost, or one without a role",
        field=".rewards",
        check=_has_reward_and_cost,
    ),
    Rule(
        holds=f"!has({_SAFE}) || {_SAFE}.pretrainingWeight == 0.0 || has(self.data.pretraining)",
        what="a loss on pretraining data, and there are none",
        do="add data.pretraining, or write pretrainingWeight: 0",
        field=".algorithm.safeRLHF.pretrainingWeight",
        check=_pretraining_has_rows,
    ),
    # Group sizes: a group of one has no spread, so all advantages would be zero.
    Rule(
        holds=f"!({_is_one_of(_COMPARING)}) || self.rollout.samplesPerPrompt >= 2",
        what="the algorithm compares the samples of a prompt, and one sample teaches nothing",
        allowed="2 or more",
        do="write samplesPerPrompt: 8",
        field=".rollout.samplesPerPrompt",
        check=_groups_can_be_compared,
    ),
    Rule(
        holds="!has(self.algorithm.reinforcePlusPlus) || "
        "!self.algorithm.reinforcePlusPlus.groupBaseline || self.rollout.samplesPerPrompt >= 2",
        what="groupBaseline compares the samples of a prompt, and one sample teaches nothing",
        allowed="2 or more",
        do="write samplesPerPrompt: 8, or remove groupBaseline",
        field=".rollout.samplesPerPrompt",
        check=_group_has_a_baseline,
    ),
    Rule(
        holds=f"!({_is_one_of(_ON_DATA)}) || !has({_ON_STOP}.ContextLimit) && "
        f"[{_ACTIONS}].all(action, action == {text(StopAction.TRAIN)})",
        what="onStop is about generated responses, and the algorithm generates none",
        got="self.algorithm.type",
        allowed="an algorithm that generates responses",
        do="remove onStop",
        field=".rollout.onStop",
        check=_responses_are_generated,
    ),
    Rule(
        holds=f"!has(self.rollout.environment) || !({_is_one_of(_ON_DATA)})",
        what="an environment of conversations, and the algorithm generates none",
        got="self.algorithm.type",
        allowed="an algorithm that generates responses",
        do="remove environment",
        field=".rollout.environment",
        check=_conversations_are_generated,
    ),
    Rule(
        holds="!has(self.rollout.environment) || !has(self.rollout.environment.turnCredit) || "
        f"!({_is_one_of(_WITHOUT_TURN_CREDIT)})",
        what="a use of the rewards of turns, and the algorithm does not use them",
        got="self.algorithm.type",
        allowed="an algorithm of the product with advantages",
        do="remove turnCredit; a custom algorithm adds turn_rewards by AddTurnRewards or "
        "AddTurnAdvantages",
        field=".rollout.environment.turnCredit",
        check=_rewards_of_turns_are_used,
    ),
    Rule(
        holds=f"self.algorithm.type != {text(AlgorithmType.ONLINE_DPO)} || "
        f"!({text(StopAction.MASK)} in [{_ACTIONS}])"
        + "".join(
            f" && (!has({_ON_STOP}.{reason.value}) || "
            f"{_ON_STOP}.{reason.value} != {text(StopAction.MASK)})"
            for reason in (StopReason.CONTEXT_LIMIT, *CONVERSATION_REASONS)
        ),
        what="OnlineDPO compares two complete responses, so it cannot mask one of them",
        allowed="Train, LeaveOut",
        do="write LeaveOut, then no pair has such a response",
        field=".rollout.onStop",
        check=_pairs_are_not_masked,
    ),
    Rule(
        holds=f"!({is_truncated('self.rollout')}) || !({_is_one_of(_ON_DATA)})",
        what="truncated sampling, and the algorithm samples no responses",
        allowed="topP, topK and minP with other types",
        do="remove it; data.evaluation has its own",
        field=".rollout",
        check=_sampling_exists,
    ),
    *map(_actor_is_trained, _WITH_CRITIC),
)
