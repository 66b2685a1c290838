"""Conversations in the tokens of a reward model, as transformers writes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from rlhf_api.spec.data import TrainingData
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.retokenizer import Retokenizer, Sequences, SplitRetokenizer, _split_sequences
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import pack

PROMPTS: list[Any] = [
    "21=",
    "21=",
    [{"role": "user", "content": "3"}, {"role": "assistant", "content": "4"}]
    + [{"role": "user", "content": "5"}],
    "9=",
]
RESPONSES = ["12", "1", "7<eos>", ""]
GROUPS = np.array([0, 0, 5, 2])
FINISHED = np.array([True, False, True, True])


def retokenized(
    tokenizer: TextTokenizer, prompts: list[Any] = PROMPTS, **source: Any
) -> list[list[int]]:
    data = TrainingData.model_validate({"path": "rows.jsonl", **source})
    made = sequences(
        Retokenizer("learned_model", data, SourceSetting(Split.TRAIN), tokenizer), prompts
    )
    assert made.prompts.lengths is not None and made.prompts.lengths.min() > 0
    pairs = zip(made.prompts.runs(), made.responses.runs(), strict=True)
    return [[*prompt.tolist(), *response.tolist()] for prompt, response in pairs]


def sequences(retokenizer: Retokenizer, prompts: list[Any]) -> Sequences:
    records = [
        json.dumps({"prompt": "as the policy reads it", "record": {"prompt": p}}) for p in prompts
    ]
    return retokenizer.sequences(records, RESPONSES, FINISHED, GROUPS)


@pytest.mark.parametrize("system", [None, "be brief"])
def test_a_template_writes_the_whole_conversation(
    chat_tokenizer: TextTokenizer, system: str | None
) -> None:
    """As transformers does, whose text ends behind the assistant's message."""
    theirs = PreTrainedTokenizerFast.from_pretrained(chat_tokenizer.folder)
    expected = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        said = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        before = [] if system is None else [{"role": "system", "content": system}]
        messages = [*before, *said, {"role": "assistant", "content": response}]
        expected.append(theirs.apply_chat_template(messages, return_dict=False))
    source = {} if system is None else {"systemPrompt": system}
    assert retokenized(chat_tokenizer, **source) == expected


def test_the_template_has_the_arguments_of_source_and_row(chat_tokenizer: TextTokenizer) -> None:
    file = chat_tokenizer.folder / "chat_template.jinja"
    file.write_text(file.read_text() + "{{ depth }}")
    tokenizer = TextTokenizer(chat_tokenizer.folder)
    made = retokenized(tokenizer, chatTemplateArguments={"depth": 7})
    assert [tokenizer.text_of(row)[-1] for row in made] == ["7"] * 4
    data = TrainingData.model_validate(
        {"path": "rows.jsonl", "chatTemplateArgumentsField": "variables"}
    )
    record = json.dumps({"record": {"prompt": "1=", "variables": {"depth": 3}}})
    one = Retokenizer("learned_model", data, Split.TRAIN, tokenizer).sequences(
        [record], ["2"], FINISHED[:1], GROUPS[:1]
    )
    (response,) = one.responses.runs()
    assert tokenizer.text_of(response.tolist()).endswith("3")


def test_without_a_template_texts_follow_each_other(tokenizer: TextTokenizer) -> None:
    """What ended by itself is closed; the prompt is that of the data, not the policy's text."""
    prompts = [prompt if isinstance(prompt, str) else "5" for prompt in PROMPTS]
    end = tokenizer.eos_token_id
    expected = [
        tokenizer.encode([prompt + response], True).values.tolist() + [end] * bool(finished)
        for prompt, response, finished in zip(prompts, RESPONSES, FINISHED, strict=True)
    ]
    assert retokenized(tokenizer, prompts) == expected


def test_templates_are_left_aside_where_prompts_do_without(chat_tokenizer: TextTokenizer) -> None:
    prompts = ["21=", "21=", "5", "9="]
    (first, *_) = retokenized(chat_tokenizer, prompts, chatTemplate="Never")
    assert first == [*chat_tokenizer.encode(["21=12"], True).values, chat_tokenizer.eos_token_id]


def test_prompts_that_need_a_template_are_told(tokenizer: TextTokenizer) -> None:
    with pytest.raises(ChatTemplateUnusable, match="tokenizer of learned_model: data.train needs"):
        retokenized(tokenizer, systemPrompt="be brief")
    with pytest.raises(ChatTemplateUnusable, match="prompt holds messages"):
        retokenized(tokenizer)


def test_what_the_template_refuses_is_told(chat_tokenizer: TextTokenizer) -> None:
    bad = [[{"role": "critic", "content": "x"}]] * 4
    with pytest.raises(ChatTemplateUnusable, match="learned_model cannot render a prompt.*critic"):
        retokenized(chat_tokenizer, bad)


@given(
    rows=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8),
    data=st.data(),
)
def test_rows_of_a_group_have_the_same_prompt(rows: list[list[int]], data: st.DataObject) -> None:
    """The longest that leaves each a token behind it, where each has two."""
    numbers = st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))
    groups = np.asarray(data.draw(numbers))
    if len({(group, row[0]) for group, row in zip(groups.tolist(), rows, strict=True)}) > len(
        set(groups.tolist())
    ):
        return  # templates begin alike
    made = _split_sequences(
        pack([np.asarray(row, dtype=np.int32) for row in rows], np.int32), groups
    )
    prompts = [run.tolist() for run in made.prompts.runs()]
    responses = [run.tolist() for run in made.responses.runs()]
    assert [a + b for a, b in zip(prompts, responses, strict=True)] == rows
    for group in set(groups.tolist()):
        own = [number for number in range(len(rows)) if groups[number] == group]
        (prompt,) = {tuple(prompts[number]) for number in own}
        follow = {tuple(responses[number][:1]) for number in own}
        shortest = min(len(rows[number]) for number in own)
        assert len(prompt) == max(1, shortest - 1) or len(follow) > 1


def test_prompts_of_several_sources_are_rendered_as_their_own(
    chat_tokenizer: TextTokenizer,
) -> None:
    sources = [
        {"path": "a.jsonl", "promptField": "q", "systemPrompt": "be"},
        {"path": "b.jsonl", "name": "plain", "chatTemplate": "Never"},
    ]
    data = TrainingData.model_validate({"sources": sources})
    several = SplitRetokenizer("learned_model", Split.TRAIN, data, chat_tokenizer)
    rows = [("plain", {"prompt": "2="}), ("0", {"q": "1="}), ("plain", {"prompt": "3="})]
    records = [json.dumps({"prompt": "", "record": row, "source": name}) for name, row in rows]
    made = several.sequences(
        records, ["a", "b", "c"], np.array([True, True, False]), np.array([0, 1, 2])
    )
    texts = [
        chat_tokenizer.text_of([*prompt.tolist(), *response.tolist()])
        for prompt, response in zip(made.prompts.runs(), made.responses.runs(), strict=True)
    ]
    assert texts == ["2=a<eos>", "<system>be<eos><user>1=<eos><assistant>b<eos>", "3=c"]


def test_a_rank_may_have_no_rows_of_several_sources(chat_tokenizer: TextTokenizer) -> None:
    data = TrainingData.model_validate({"sources": [{"path": "a.jsonl"}, {"path": "b.jsonl"}]})
    several = SplitRetokenizer("learned_model", Split.TRAIN, data, chat_tokenizer)
    made = several.sequences([], [], FINISHED[:0], GROUPS[:0])
    assert made.prompts.num_rows == made.responses.num_rows == 0
