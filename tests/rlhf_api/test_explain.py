"""Explanations: every field has one, and paths lead where a reader expects."""

from __future__ import annotations

import pytest

from rlhf_api.errors import UnknownFieldError
from rlhf_api.reading.explain import explain, find_field
from rlhf_api.reading.fields import all_fields, contract

EVERY_PATH = [field.path for field in all_fields(contract())]


@pytest.mark.parametrize("path", EVERY_PATH)
def test_every_field_can_be_explained_by_its_path(path: str) -> None:
    text = explain(path)
    assert text.startswith("KIND:     RLHFJob\nVERSION:  rlhf-operator.dev/v1alpha1\n")
    assert find_field(path).path == path
    # A path in Kubernetes' own names may be longer than a line.
    lines = [line for line in text.splitlines() if not line.startswith("FIELD: ")]
    assert max(map(len, lines)) <= 140


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("", ""),
        ("RLHFJob.spec.rollout", "spec.rollout"),
        ("rlhfjob.spec", "spec"),
        ("spec.models.actor", "spec.models.<name>"),
        ("spec.models.actor.source", "spec.models.<name>.source"),
        ("spec.models.source", "spec.models.<name>.source"),
        ("spec.rewards.function.onError", "spec.rewards[].function.onError"),
        ("spec.rewards[0].function", "spec.rewards[].function"),
        (
            "spec.resources.nodePools.tolerations.key",
            "spec.resources.nodePools[].tolerations[].key",
        ),
        ("metadata.labels[example.com/team]", "metadata.labels.<name>"),
    ],
)
def test_lists_are_looked_through_and_map_keys_accepted(path: str, leads_to: str) -> None:
    assert find_field(path).path == leads_to


def test_a_value_shows_type_meaning_limits_and_default() -> None:
    text = explain("spec.rollout.temperature")
    assert "FIELD: spec.rollout.temperature <number>" in text
    assert "DESCRIPTION:\n    Sampling temperature" in text
    assert "ALLOWED:\n    a number greater than 0 and at most 2\n" in text
    assert "DEFAULT:\n    1.0\n" in text


def test_an_enumeration_shows_what_its_values_mean() -> None:
    text = explain("spec.rewards.function.onError")
    assert "Exclude  The sample is marked, counted and excluded from training." in text
    assert "DEFAULT:\n    Exclude" in text


def test_an_object_lists_its_fields_with_type_default_and_first_sentence() -> None:
    text = explain("spec.schedule")
    assert "  steps <integer> -required-\n    Training steps" in text
    assert "  evaluateEverySteps <integer> default 25\n" in text
    assert "  warmStart <WarmStartSpec>\n" in text


def test_a_path_may_leave_spec_out() -> None:
    assert explain("rollout.environment") == explain("spec.rollout.environment")
    assert explain("metadata.name").startswith("KIND:")


def test_the_tree_shows_all_levels() -> None:
    text = explain(recursive=True)
    assert "        source <ModelSource> -required-\n          huggingFace <string>\n" not in text
    assert "      source <ModelSource> -required-\n        huggingFace <string>\n" in text
    assert len(text.splitlines()) >= len(EVERY_PATH)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("spec.algoritm", ("spec has no field algoritm", "did you mean algorithm?", "rewards")),
        ("spec.rollout.top_p", ("write topP",)),
        ("seed", ("RLHFJob has no field seed", "spec.schedule.seed")),
        ("ppo", ("spec.algorithm.ppo",)),
        ("spec.banana", ("spec has no field banana", "choose one of them")),
        ("spec.rollout.temperature.x", ("spec.rollout.temperature is a number", "no fields")),
        ("spec.models.actor.sorce", ("spec.models.actor has no field", "did you mean source?")),
    ],
)
def test_an_unknown_path_names_what_is_near(path: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UnknownFieldError) as raised:
        explain(path)
    for each in words:
        assert each in str(raised.value)
