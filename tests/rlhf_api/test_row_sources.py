"""Sources of rows: what only the models check, and fields that several sources share."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlhf_api.spec.data import TrainingData

ARGUMENTS = {"enable_thinking": False}


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "eos_token"])
@pytest.mark.parametrize("is_part", [False, True])
def test_variables_that_rendering_sets_are_no_arguments(name: str, is_part: bool) -> None:
    source = {"path": "/rows.jsonl", "chatTemplateArguments": {name: "x"}}
    data = {"sources": [source]} if is_part else source
    with pytest.raises(ValidationError, match="rendering sets itself"):
        TrainingData.model_validate(data)


def test_arguments_of_a_template_that_is_not_used_are_refused() -> None:
    source = {"path": "/rows.jsonl", "chatTemplate": "Never", "chatTemplateArguments": ARGUMENTS}
    with pytest.raises(ValidationError, match="a chat template that is not used"):
        TrainingData.model_validate(source)


def test_a_source_without_the_template_leaves_the_arguments_beside_it_to_others() -> None:
    parts = [{"path": "/a.jsonl"}, {"path": "/b.jsonl", "chatTemplate": "Never"}]
    data = TrainingData.model_validate(
        {"sources": parts, "chatTemplateArguments": ARGUMENTS, "chatTemplateArgumentsField": "v"}
    )
    assert [part.chat_template_arguments for part in data.parts] == [ARGUMENTS, {}]
    assert [part.chat_template_arguments_field for part in data.parts] == ["v", None]


def test_sources_have_the_arguments_beside_them_unless_they_have_their_own() -> None:
    parts = [{"path": "/a.jsonl"}, {"path": "/b.jsonl", "chatTemplateArguments": {}}]
    data = TrainingData.model_validate({"sources": parts, "chatTemplateArguments": ARGUMENTS})
    assert [part.chat_template_arguments for part in data.parts] == [ARGUMENTS, {}]


def test_sources_train_on_the_answers_named_beside_them_unless_they_name_their_own() -> None:
    parts = [{"path": "/a.jsonl"}, {"path": "/b.jsonl", "trainOn": "LastAnswer"}]
    data = TrainingData.model_validate({"sources": parts, "trainOn": "AllAnswers"})
    assert [part.train_on.value for part in data.parts] == ["AllAnswers", "LastAnswer"]
    assert data.trains_all_answers and not data.parts[1].trains_all_answers
    assert [part.weights for part in data.parts] == [(), ()]
    assert not TrainingData.model_validate({"sources": parts}).trains_all_answers


def test_paths_are_named_by_their_fields_also_in_a_source() -> None:
    assert TrainingData(path="/a").named_paths == {"path": "/a"}
    assert TrainingData(builtin="SortDigits").named_paths == {}
    data = TrainingData.model_validate({"sources": [{"paths": ["/a", "/b*"], "split": "x"}]})
    (part,) = data.parts
    assert part.named_paths == {"paths[0]": "/a", "paths[1]": "/b*"}
    with pytest.raises(ValidationError, match="at least 1 item"):
        TrainingData.model_validate({"paths": []})


@pytest.mark.parametrize("name", ["seed", "size"])
def test_seed_and_size_are_no_parameters_of_a_generator(name: str) -> None:
    source = {"reasoningGym": {"dataset": "chain_sum", "parameters": {name: 3}}}
    with pytest.raises(ValidationError, match="a field of its own"):
        TrainingData.model_validate(source)


def test_repeated_fields_of_a_generator_are_named_in_their_order() -> None:
    source = {"dataset": "chain_sum", "parameters": {"size": 3, "seed": 3}}
    with pytest.raises(ValidationError) as caught:
        TrainingData.model_validate({"reasoningGym": source})
    text = str(caught.value)
    assert text.index("parameters.seed") < text.index("parameters.size")


def test_generated_tasks_have_answers_and_a_known_number_of_rows() -> None:
    part = {"reasoningGym": {"dataset": "chain_sum", "size": 30}}
    data = TrainingData.model_validate({"sources": [part, {**part, "maxRows": 4}]})
    assert data.has_answers and data.most_rows == 34
