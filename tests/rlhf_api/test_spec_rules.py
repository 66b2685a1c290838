"""Rules across sections: each finds its case, and all are found at once."""

from __future__ import annotations

import copy

import pytest
from pydantic import ValidationError

from rlhf_api.reading.overrides import apply_overrides
from rlhf_api.reading.validation import validate_document
from rlhf_api.spec.cross_field import SPEC_RULES
from rlhf_api.spec.job import RLHFJob

from .rule_cases import GOOD, GROUPS, SHAPE, TRAINING, TWO_POOLS, UNMEASURED

PLACED = "spec.placement={type: Manual, groups: [%s]}"


def problems(*overrides: str) -> list[tuple[str, str]]:
    _, found = validate_document(apply_overrides(GOOD, overrides))
    return [(problem.path, problem.message) for problem in found]


def test_a_stop_reason_without_a_treatment_is_no_field() -> None:
    # Not among the rules: an API server drops unknown fields, or refuses them in its own words.
    ((path, message),) = problems("spec.rollout.onStop.Length=Mask")
    assert path == "spec.rollout.onStop.Length" and "TokenLimit" in message


def test_a_good_spec_has_no_problem() -> None:
    job, found = validate_document(GOOD)
    assert found == []
    assert job is not None
    assert [each for rule in SPEC_RULES for each in rule.problems(job.spec)] == []


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        (
            ['spec.resources.head={cpu: 1500m, cpuLimit: "1"}'],
            "spec.resources.head.cpuLimit",
            "a limit of CPU cores below the request: got 1",
        ),
        (
            ["spec.code={requirements: ['a>=1', 'a>=']}"],
            "spec.code.requirements[1]",
            "not a requirement of a package: got a>= (",
        ),
        (
            ["spec.code={requirements: ['my-package>=1', 'My_Package<2']}"],
            "spec.code.requirements[1]",
            "one package stands twice: got my-package>=1 and My_Package<2",
        ),
        (["spec.models.critc.source.sameAs=actor"], "spec.models.critc", "did you mean critic?"),
        (
            ["spec.models.judge.source.sameAs=actor"],
            "spec.models.judge",
            "a role that the algorithm does not have: got judge, allowed actor, reference, critic",
        ),
        (
            ["spec.models.critic.source.sameAs=critic"],
            "spec.models.critic.source.sameAs",
            "allowed actor",
        ),
        (
            [
                "spec.models.critic.source.sameAs=reference",
                "spec.models.reference.source.sameAs=actor",
            ],
            "spec.models.critic.source.sameAs",
            "got reference",
        ),
        (
            [
                "spec.algorithm={type: SFT}",
                "spec.data.train={sources: [{path: /a, answerField: b}, {path: /c}]}",
            ],
            "spec.data.train.answerField",
            "got rows of prompts in sources[1]",
        ),
        (
            ["spec.algorithm.ppo.criticWarmupSteps=10"],
            "spec.algorithm.ppo.criticWarmupSteps",
            "got 10 of 10 steps",
        ),
        (
            ["spec.checkpoint.keepBest=ExactMatch", UNMEASURED],
            "spec.checkpoint.keepBest",
            'got judge, allowed a function with @measures("exact_match")',
        ),
        (
            ["spec.schedule.warmStart.stopAtExactMatch=0.5"],
            "spec.schedule.warmStart.stopAtExactMatch",
            "add data.evaluation",
        ),
        (
            [
                "spec.schedule.warmStart.stopAtExactMatch=0.5",
                "spec.data.evaluation.path=/e.jsonl",
                UNMEASURED,
            ],
            "spec.schedule.warmStart.stopAtExactMatch",
            'got judge, allowed a function with @measures("exact_match")',
        ),
        (["spec.rewards[0].name=mean"], "spec.rewards[0].name", "another metric of the role"),
        (["spec.data.train.maxRows=3"], "spec.data.train.maxRows", "promptsPerStep, 4"),
        (
            ["spec.resources.nodePools[0].name=head"],
            "spec.resources.nodePools[0].name",
            "the cluster's own head",
        ),
        (
            ["spec.resources.nodePools[0].device=CPU", "spec.resources.nodePools[0].gpu=H100"],
            "spec.resources.nodePools[0].gpu",
            "device CPU",
        ),
        (["spec.placement.maxDevices=9"], "spec.placement.maxDevices", "at most 8 = 2 x 4 (a)"),
        (
            ["spec.rollout.parallelism.tensor=16"],
            "spec.rollout.parallelism.tensor",
            "got 16, allowed at most 8 = 2 x 4 (a)",
        ),
        (
            [f"{GROUPS}[{{roles: [actor]}}, {{roles: [critic, actor]}}]}}"],
            "spec.placement.groups[1].roles[1]",
            "a role twice among the groups, for the same calls: got actor",
        ),
        (
            [TWO_POOLS, f"{GROUPS}[{{roles: [actor], pool: a}}, {{roles: [critic]}}]}}"],
            "spec.placement.groups[1].pool",
            "a group without a pool, and the job has several: got none, allowed a, b",
        ),
        (
            [
                "spec.resources.nodePools=[{name: actors}]",
                f"{GROUPS}[{{roles: [actor], pool: actor}}]}}",
            ],
            "spec.placement.groups[0].pool",
            "got actor, allowed actors; did you mean actors?",
        ),
        (
            [
                "spec.resources={}",
                f"{GROUPS}[{{roles: [actor], pool: x}}, {{roles: [critic], pool: y}}, "
                "{roles: [reference]}]}",
            ],
            "spec.placement.groups[2].pool",
            "a group without a pool, and the job has several: got none, allowed x, y",
        ),
        (
            [
                "spec.resources.nodePools=[{name: a}, {name: b, device: CPU}]",
                f"{GROUPS}[{{roles: [actor], pool: a}}, {{roles: [critic], pool: b}}]}}",
            ],
            "spec.resources.nodePools[1].device",
            "pools of different devices: got CPU, allowed GPU, as in pool a",
        ),
        (
            [
                "spec.resources.nodePools=[{name: a}, {name: a}]",
                f"{GROUPS}[{{roles: [actor, critic], pool: a}}]}}",
            ],
            "spec.resources.nodePools[1].name",
            "a name that is used twice: got a",
        ),
        (
            [f"spec.models.actor.shape={SHAPE % 6}", "spec.rollout.parallelism.tensor=4"],
            "spec.rollout.parallelism.tensor",
            "numAttentionHeads, 6",
        ),
        (
            ["spec.models.actor.training.parallelism.tensor=2"],
            "spec.models.actor.training.parallelism.tensor",
            "got 2, allowed 1 with engine FSDP; write engine: Megatron, or remove it",
        ),
        (
            [TRAINING % (4, 3)],
            "spec.models.actor.training.parallelism",
            "got tensor 4 x pipeline 3 = 12, allowed at most 8, of pools with 8 (a)",
        ),
        (
            [PLACED % "{roles: [actor, critic], firstDevice: 2, devices: 7}"],
            "spec.placement.groups[0].devices",
            "for actor, critic, allowed 0 to 7 of pool a, which has 2 x 4; lower firstDevice or",
        ),
        (
            [PLACED % "{roles: [actor]}, {roles: [critic], firstDevice: 8}"],
            "spec.placement.groups[1].firstDevice",
            "got devices 8 to 8 for critic, allowed 0 to 7 of pool a, which has 2 x 4; lower",
        ),
        (
            [f"spec.models.actor.shape={SHAPE % 6}", TRAINING % (4, 1)],
            "spec.models.actor.training.parallelism.tensor",
            "got tensor 4, and 6 attention heads / 4 = 1.5, allowed 1, 2 for this model",
        ),
        (
            [f"spec.models.actor.shape={SHAPE % 3}", TRAINING % (2, 1)],
            "spec.models.actor.training.parallelism.tensor",
            "got tensor 2, and 3 key and value heads / 2 = 1.5, allowed 1 for this model",
        ),
        (
            [f"spec.models.actor.shape={SHAPE % 6}", TRAINING % (3, 1)],
            "spec.models.actor.training.parallelism.tensor",
            "8 columns of the feed-forward layer / 3 = 2.667, allowed 1, 2 for this model",
        ),
        (
            [f"spec.models.actor.shape={SHAPE % 6}", TRAINING % (1, 2)],
            "spec.models.actor.training.parallelism.pipeline",
            "got pipeline 2, and 1 layers / 2 = 0.5, allowed 1 for this model",
        ),
    ],
)
def test_each_rule_names_the_field_and_the_arithmetic(
    overrides: list[str], path: str, words: str
) -> None:
    ((found, message),) = problems(*overrides)
    assert found == path
    assert words in message


@pytest.mark.parametrize(
    "override",
    [
        "spec.models.critic.source.sameAs=actor",
        "spec.algorithm.ppo.criticWarmupSteps=9",
        "spec.data.train.maxRows=4",
        "spec.placement.maxDevices=8",
        PLACED % "{roles: [actor], devices: 8}, {roles: [critic], firstDevice: 7}",
        "spec.rollout.samplesPerPrompt=1",
        "spec.rollout.parallelism={tensor: 8}",
    ],
)
def test_values_at_the_limit_are_allowed(override: str) -> None:
    assert problems(override) == []


def test_a_builtin_task_measures_a_warm_start() -> None:
    warm_start = "spec.schedule.warmStart.stopAtExactMatch=0.5"
    assert problems(warm_start, "spec.data.train={builtin: SortDigits}") == []


def test_a_custom_algorithm_has_any_roles() -> None:
    custom = "spec.algorithm={type: Custom, custom: {entrypoint: 'mine:Mine'}}"
    assert problems(custom, "spec.models.judge.source.sameAs=actor") == []


def test_all_rules_speak_at_once() -> None:
    found = problems(
        "spec.placement.maxDevices=9",
        "spec.data.train.maxRows=3",
        "spec.models.judge.source.sameAs=nobody",
    )
    assert {path for path, _ in found} == {
        "spec.placement.maxDevices",
        "spec.data.train.maxRows",
        "spec.models.judge",
        "spec.models.judge.source.sameAs",
    }


def test_a_job_that_breaks_a_rule_cannot_be_made_in_python() -> None:
    document = copy.deepcopy(GOOD)
    document["spec"]["placement"] = {"maxDevices": 9}
    with pytest.raises(ValidationError, match="more devices than the node pools have"):
        RLHFJob.model_validate(document)


@pytest.mark.parametrize("metric", ["ExactMatch", "None"])
def test_the_best_checkpoint_can_be_told_by_what_is_measured(metric: str) -> None:
    assert problems(f"spec.checkpoint.keepBest={metric}") == []


@pytest.mark.parametrize(
    "text",
    [
        "a @ https://a.example/a",
        "https://a.example/a.whl",
        "--pre",
        "a --pre",
        "-e a",
        "./a",
        "a\n",
    ],
)
def test_a_requirement_is_no_address_and_no_option(text: str) -> None:
    document = copy.deepcopy(GOOD)
    document["spec"]["code"] = {"requirements": [text]}
    _, ((problem),) = validate_document(document)
    assert problem.path == "spec.code.requirements[0]"
    assert "such as rapidfuzz>=3,<4, without an address and pip's options" in problem.message
