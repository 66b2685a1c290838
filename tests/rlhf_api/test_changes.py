from typing import Any

import pytest

from rlhf_api.changes import MUTABLE_WHILE_RUNNING, manifest_digest, refused_changes, spec_document
from rlhf_api.spec.job import RLHFJobSpec

from .rule_cases import GOOD

OLD: dict[str, Any] = {
    "schedule": {"steps": 10, "seed": 0},
    "models": {
        "actor": {"training": {"learningRate": 1e-6, "weightDecay": 0.0, "microBatchTokens": None}}
    },
    "rollout": {"temperature": 1.0, "kvCacheMemory": None},
    "code": {"git": {"url": "https://example.com/r.git", "revision": "main"}},
    "rewards": [{"weight": 1.0, "model": None}, {"weight": 1.0, "model": {"path": "/m"}}],
    "telemetry": None,
}


def changed(**fields: Any) -> dict[str, Any]:
    """The old spec with other values; names are joined by two underscores."""
    new: dict[str, Any] = {key: _copy(value) for key, value in OLD.items()}
    for name, value in fields.items():
        *parents, last = name.split("__")
        place = new
        for parent in parents:
            place = place[parent]
        place[last] = value
    return new


def _copy(value: Any) -> Any:
    return {key: _copy(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"schedule__steps": 20},
        {"models__actor__training__learningRate": 1e-5},
        {"models__actor__training__microBatchTokens": 512},
        {"rollout__kvCacheMemory": "1Gi"},
        {"code__git__revision": "corrected"},
        {"telemetry": {"trackers": []}},
        {
            "rewards": [
                OLD["rewards"][0],
                {"weight": 1.0, "model": {"path": "/m", "microBatchTokens": 64}},
            ]
        },
        {"suspend": True},
    ],
)
def test_what_may_change_is_not_refused(fields: dict[str, Any]) -> None:
    assert refused_changes(OLD, changed(**fields)) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schedule__seed": 1}, "spec.schedule.seed: this field cannot change"),
        ({"models__actor__training__weightDecay": 0.1}, "weightDecay"),
        ({"rewards": OLD["rewards"][:1]}, "spec.rewards: this field"),
        (
            {"rewards": [{"weight": 2.0, "model": None}, OLD["rewards"][1]]},
            "spec.rewards[0].weight: this field",
        ),
        (
            {"rewards": [OLD["rewards"][0], {"weight": 1.0, "model": {"path": "/n"}}]},
            "spec.rewards[1].model.path: this field",
        ),
        ({"rollout__temperature": 0.5}, "spec.rollout.temperature"),
        ({"models__critic": {"training": {}}}, "spec.models.critic"),
    ],
)
def test_anything_else_is_refused_with_both_values(fields: dict[str, Any], said: str) -> None:
    (problem,) = refused_changes(OLD, changed(**fields))
    assert said in str(problem)
    assert "got" in str(problem) and "allowed" in str(problem)


def test_both_values_are_shown() -> None:
    (problem,) = refused_changes(OLD, changed(schedule__seed=7))
    assert (problem.got, problem.allowed) == ("7", "0")


def test_while_it_runs_less_may_change() -> None:
    assert refused_changes(OLD, changed(schedule__steps=20), allowed=("suspend",)) != []


def test_what_hardware_can_do_may_change_when_a_job_goes_on() -> None:
    """Like other numbers that only the planner reads: not while it runs, as what runs was planned
    with the old ones."""

    def document(**hardware: float) -> tuple[dict[str, Any], str]:
        pool = {"name": "a", "gpu": "H100"} | ({"hardware": hardware} if hardware else {})
        spec = RLHFJobSpec.model_validate(
            {
                "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
                "algorithm": {"type": "GRPO"},
                "data": {"train": {"builtin": "SortDigits"}},
                "rewards": [{"name": "exact", "function": {"entrypoint": "verifiers:exact"}}],
                "schedule": {"steps": 1, "promptsPerStep": 4},
                "rollout": {"samplesPerPrompt": 2},
                "resources": {"nodePools": [pool]},
            }
        )
        return spec_document(spec), manifest_digest(spec)

    old, old_digest = document()
    new, new_digest = document(networkGigabitsPerSecond=100)
    assert refused_changes(old, new) == []
    assert refused_changes(old, new, allowed=MUTABLE_WHILE_RUNNING) != []
    assert old_digest != new_digest


def test_cuts_into_one_part_are_those_of_an_earlier_release() -> None:
    """Whose stored jobs have them as defaults: they go on under this one."""

    def digest(**models: Any) -> str:
        spec = {
            "models": models,
            "algorithm": {"type": "GRPO"},
            "data": {"train": {"builtin": "SortDigits"}},
            "rewards": [{"name": "exact", "function": {"entrypoint": "verifiers:exact"}}],
            "schedule": {"steps": 1, "promptsPerStep": 4},
            "rollout": {"samplesPerPrompt": 2},
        }
        return manifest_digest(RLHFJobSpec.model_validate(spec))

    source = {"source": {"builtin": "TinyLlama"}}
    for training in ({}, {"learningRate": 1e-5}):
        stored = training | {"parallelism": {"tensor": 1, "pipeline": 1, "sequence": True}}
        plain = source | ({"training": training} if training else {})
        assert digest(actor=source | {"training": stored}) == digest(actor=plain)
    cut = {"engine": "Megatron", "parallelism": {"tensor": 2, "pipeline": 1}}
    uncut = {"engine": "Megatron", "parallelism": {"tensor": 1, "pipeline": 1}}
    assert digest(actor=source | {"training": cut}) != digest(actor=source | {"training": uncut})


def test_what_code_and_models_are_is_in_no_digest() -> None:
    shape = {
        **{"numLayers": 2, "hiddenSize": 8, "intermediateSize": 8, "numAttentionHeads": 2},
        **{"numKeyValueHeads": 2, "headDim": 4, "vocabSize": 8},
    }
    graph = {
        **{"version": 1, "codeDigest": "0" * 16, "settingsDigest": "0" * 16},
        "roles": [{"name": "actor", "kind": "LanguageModel"}],
        "calls": [{"id": "actor.train", "method": "train", "rows": {"expected": 1, "most": 1}}],
    }
    plain: dict[str, Any] = {
        "models": {"actor": {"source": {"path": "/m"}}},
        "algorithm": {"type": "Custom", "custom": {"entrypoint": "mine:Mine"}},
        "data": {"train": {"path": "/d.jsonl"}},
        "rewards": [{"name": "style", "model": {"path": "/r"}}],
        "schedule": {"steps": 1, "promptsPerStep": 4},
    }
    filled = {
        **plain,
        "models": {"actor": {"source": {"path": "/m"}, "shape": shape}},
        "algorithm": {**plain["algorithm"], "graph": graph},
        "rewards": [{"name": "style", "model": {"path": "/r", "shape": shape}}],
    }
    before, after = map(RLHFJobSpec.model_validate, (plain, filled))
    assert manifest_digest(before) == manifest_digest(after)
    assert manifest_digest(before) != manifest_digest(after, with_shapes=True)
    assert refused_changes(spec_document(before), spec_document(after), MUTABLE_WHILE_RUNNING) == []
    other = plain | {"algorithm": {"type": "Custom", "custom": {"entrypoint": "mine:Other"}}}
    assert manifest_digest(RLHFJobSpec.model_validate(other)) != manifest_digest(before)


def with_placement(**placement: Any) -> RLHFJobSpec:
    return RLHFJobSpec.model_validate(GOOD["spec"] | {"placement": placement})


def test_an_objective_is_in_the_digest_and_its_default_is_not() -> None:
    """Jobs of a release without objectives go on under this one."""
    plain = manifest_digest(RLHFJobSpec.model_validate(GOOD["spec"]))
    assert manifest_digest(with_placement(objective={"type": "StepTime"})) == plain
    fewest = [{"type": "FewestDevices", "maxStepSeconds": each} for each in (1, 2)]
    others = [with_placement(objective=each) for each in ({"type": "DeviceTime"}, *fewest)]
    assert len({plain, *map(manifest_digest, others)}) == 4


def test_an_objective_may_change_on_resume_and_not_while_it_runs() -> None:
    old, new = (
        spec_document(with_placement(**placement))
        for placement in ({}, {"objective": {"type": "DeviceTime"}})
    )
    assert refused_changes(old, new) == []
    (refused,) = refused_changes(old, new, allowed=MUTABLE_WHILE_RUNNING)
    assert refused.path == "spec.placement.objective.type"


def test_starting_over_may_be_set_and_removed_at_any_time_and_restarts_nothing() -> None:
    storage = {"persistentVolumeClaim": {"claimName": "shared"}}

    def spec(**checkpoint: Any) -> RLHFJobSpec:
        checkpoint = {"storage": storage} | checkpoint
        return RLHFJobSpec.model_validate(GOOD["spec"] | {"checkpoint": checkpoint})

    plain, fresh, other = spec(), spec(start="Fresh"), spec(start="Fresh", keepLast=7)
    assert manifest_digest(plain) == manifest_digest(fresh) != manifest_digest(other)
    documents = [spec_document(each) for each in (plain, fresh, other)]
    assert refused_changes(*documents[:2], MUTABLE_WHILE_RUNNING) == []
    (refused,) = refused_changes(*documents[1:], MUTABLE_WHILE_RUNNING)
    assert refused.path == "spec.checkpoint.keepLast"
