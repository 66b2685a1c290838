from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from rlhf_runtime.data.character_tokenizer import TOKENS, build_tokenizer, write_tokenizer
from rlhf_runtime.data.errors import ChatTemplateUnusable, TokenizerUnusable
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, pack

from .small_tokenizers import END, write_base_tokenizer

MESSAGES = [{"role": "system", "content": "sort"}, {"role": "user", "content": "402991="}]


def tokens(column: Column) -> list[list[int]]:
    return [run.tolist() for run in column.runs()]


def settings(folder: Path, **changes: object) -> None:
    """Change tokenizer_config.json."""
    file = folder / "tokenizer_config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps(content))


def test_the_character_tokenizer_has_64_tokens_each_with_a_text_of_its_own(
    tokenizer: TextTokenizer,
) -> None:
    assert len(TOKENS) == 64
    texts = tokenizer.decode(pack([[index, TOKENS.index("=")] for index in range(64)], np.int32))
    assert len(set(texts)) == 64


def test_auto_tokenizer_agrees(tokenizer: TextTokenizer) -> None:
    peer = AutoTokenizer.from_pretrained(tokenizer.folder)
    texts = ["402991=", "012499<eos>", "a B\n é", ""]
    assert tokens(tokenizer.encode(texts, add_special_tokens=True)) == peer(texts)["input_ids"]
    assert len(peer) == 64
    assert tokenizer.eos_token_id == peer.eos_token_id
    assert tokenizer.pad_token_id == peer.pad_token_id
    assert peer.decode(peer("402991=")["input_ids"]) == "402991="


def test_auto_tokenizer_agrees_on_chat(chat_tokenizer: TextTokenizer) -> None:
    peer = AutoTokenizer.from_pretrained(chat_tokenizer.folder)
    expected = peer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert chat_tokenizer.chat_template is not None
    assert chat_tokenizer.chat_template.render(MESSAGES) == expected
    assert expected == "<system>sort<eos><user>402991=<eos><assistant>"


def test_special_tokens_are_added_only_where_asked_for(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with_start = build_tokenizer()
    with_start.post_processor = processors.TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", TOKENS.index("<unk>"))]
    )
    with_start.save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer(tmp_path)
    peer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokens(tokenizer.encode(["1"], add_special_tokens=True)) == peer(["1"])["input_ids"]
    assert tokens(tokenizer.encode(["1"], add_special_tokens=True)) == [[2, 4]]
    assert tokens(tokenizer.encode(["1"], add_special_tokens=False)) == [[4]]


def test_decoding_drops_the_closing_end_token_and_nothing_else(tokenizer: TextTokenizer) -> None:
    end, pad = tokenizer.end_token_ids[0], tokenizer.pad_token_id
    one = TOKENS.index("1")
    responses = pack(
        [[one, end], [one], [one, end, end], [one, pad, one, end], [], [end]], np.int32
    )
    assert tokenizer.decode(responses) == ["1", "1", "1<eos>", "1<pad>1", "", ""]


def test_end_tokens_of_the_generation_config_count_too(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 1]}))
    assert TextTokenizer(tmp_path).end_token_ids == (1, 9)
    settings(tmp_path, eos_token=None)
    assert TextTokenizer(tmp_path).end_token_ids == (9, 1)


def test_further_end_tokens_are_texts_of_one_token(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (own,) = TextTokenizer(tmp_path).end_token_ids
    ended = TextTokenizer(tmp_path, ("=", "<eos>"))
    assert ended.end_token_ids == (own, TOKENS.index("="))
    assert ended.ordinary_end_tokens == [], "no file of the model names it"
    one, other = "12", "34"
    runs = ended.encode([f"{one}=", f"{other}<eos>", one], add_special_tokens=False)
    assert ended.decode(runs) == [one, other, one]
    told = "got '12', which is 2 tokens .* allowed the text"
    with pytest.raises(TokenizerUnusable, match=told) as refused:
        TextTokenizer(tmp_path, ("=", "12"))
    assert refused.value.location == ("spec", "rollout", "endTokens"), "not the model's folder"


def test_end_tokens_of_the_config_count_too(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 54}))
    assert TextTokenizer(tmp_path).end_token_ids == (1, 54)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 54]}))
    assert TextTokenizer(tmp_path).end_token_ids == (1, 9, 54)
    assert TextTokenizer(tmp_path).end_texts() == ["<eos>", "6", ";"]


def test_an_end_token_that_is_an_ordinary_word_is_found(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert TextTokenizer(tmp_path).ordinary_end_tokens == []
    end, seven, z = (TOKENS.index(token) for token in ("<eos>", "7", "z"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [end, seven, z, 10**6]}))
    assert TextTokenizer(tmp_path).ordinary_end_tokens == [seven, z]
    assert TextTokenizer(tmp_path, ["5", "z"]).ordinary_end_tokens == [seven, z], "not a wish"
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": z, "content": "z"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert TextTokenizer(tmp_path).ordinary_end_tokens == [seven], "an added token is special"


@pytest.mark.parametrize("end", ["2", -1, 64, [[1]], 2.0, True, None])
def test_end_tokens_that_the_tokenizer_does_not_have_end_nothing(
    tmp_path: Path, end: object
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": end}))
    assert TextTokenizer(tmp_path).end_token_ids == (1,)


@pytest.mark.parametrize(("end", "ends"), [(63, (1, 63)), (20, (1,)), (1 << 32, (1,))])
def test_ids_of_end_tokens_may_stand_behind_gaps(
    tmp_path: Path, end: int, ends: tuple[int, ...]
) -> None:
    write_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    del vocabulary[TOKENS[20]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": end}))
    assert TextTokenizer(tmp_path).end_token_ids == ends


def test_special_tokens_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    own = {"eos_token": "=", "bos_token": {"content": "<unk>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(own))
    settings(tmp_path, chat_template="{{ bos_token }}{{ eos_token }}")
    tokenizer = TextTokenizer(tmp_path)
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render(MESSAGES) == "<unk><eos>", "the configuration wins"
    settings(tmp_path, eos_token=None)
    assert TextTokenizer(tmp_path).eos_token_id == TOKENS.index("=")


def test_an_end_token_that_a_tokenizer_appends_is_left_out(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    closing = build_tokenizer()
    closing.post_processor = processors.TemplateProcessing(
        single="<unk> $A <eos>", special_tokens=[("<unk>", TOKENS.index("<unk>")), ("<eos>", 1)]
    )
    closing.save(str(tmp_path / "tokenizer.json"))
    encoded = TextTokenizer(tmp_path).encode(["1", "1<eos>", ""], add_special_tokens=True)
    assert tokens(encoded) == [[2, 4], [2, 4, 1], [2]]


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    settings(tmp_path, eos_token={"content": "=", "special": True}, pad_token=None)
    tokenizer = TextTokenizer(tmp_path)
    assert tokenizer.eos_token_id == TOKENS.index("=")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize(
    "template",
    [
        "<{{ messages[0].content }}>",
        [{"name": "default", "template": "<{{ messages[0].content }}>"}],
    ],
)
def test_templates_in_the_tokenizer_config_are_found(tmp_path: Path, template: object) -> None:
    write_tokenizer(tmp_path)
    settings(tmp_path, chat_template=template)
    chat = TextTokenizer(tmp_path).chat_template
    assert chat is not None
    assert chat.render([{"role": "user", "content": "1"}]) == "<1>"


def test_a_broken_template_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ChatTemplateUnusable, match="line 1"):
        TextTokenizer(tmp_path)


def test_a_folder_without_tokenizer_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("")
    with pytest.raises(TokenizerUnusable, match=r"tokenizer\.model.*save_pretrained"):
        TextTokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_files_are_named(tmp_path: Path, name: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_text("{")
    with pytest.raises(TokenizerUnusable, match=name):
        TextTokenizer(tmp_path)


def test_a_tokenizer_without_end_token_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    settings(tmp_path, eos_token=None)
    with pytest.raises(TokenizerUnusable, match="no end token"):
        TextTokenizer(tmp_path)


ANSWERED = "{% for m in messages %}{{ m.content }}BEHIND{% endfor %}"


@pytest.mark.parametrize(
    ("behind", "end"),
    [
        ("<end>\n", END),
        (" <end>", END),
        ("<end><eos>", END),
        ("<eos>", None),
        ("", None),
        (";<end>", None),
        ("7", None),
        ("<word>", None),
        ("{{ raise_exception('no') }}<end>", None),
        ("{{ messages[2].content }}<end>", None),
    ],
)
def test_the_special_token_that_a_template_writes_behind_answers_is_an_end_token(
    tmp_path: Path, behind: str, end: int | None
) -> None:
    write_base_tokenizer(tmp_path, ANSWERED.replace("BEHIND", behind))
    tokenizer = TextTokenizer(tmp_path)
    assert tokenizer.template_end == end
    assert tokenizer.end_token_ids == ((1,) if end is None else (1, END))
    assert tokenizer.decode(pack([[4, END]], np.int32)) == ["1" if end else "1<end>"]


def test_an_end_token_that_a_file_lists_is_not_the_templates_own(tmp_path: Path) -> None:
    write_base_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, 9]}))
    tokenizer = TextTokenizer(tmp_path)
    assert (tokenizer.template_end, tokenizer.end_token_ids) == (None, (1, END, 9))


@pytest.mark.parametrize(
    ("changes", "template", "text"),
    [
        ({"extra_special_tokens": {"think_token": "<pad>"}}, "{{ think_token }}!", "<pad>!"),
        ({"extra_special_tokens": {"think": "<pad>"}}, "{{ think }}!", "<pad>!"),
        ({"extra_special_tokens": ["<pad>"]}, "{{ think_token }}!", "!"),
        ({"model_specific_special_tokens": {"think_token": "<pad>"}}, "{{ think_token }}", "<pad>"),
        ({"image_token": "="}, "{{ image_token }}{{ eos_token }}", "=<eos>"),
        ({"mask_token": "<unk>"}, "{{ mask_token }}", "<unk>"),
        ({"add_bos_token": True}, "{{ add_bos_token }}!", "!"),
    ],
)
def test_templates_have_every_named_special_token(
    tmp_path: Path, changes: dict[str, object], template: str, text: str
) -> None:
    write_tokenizer(tmp_path)
    settings(tmp_path, chat_template=template, **changes)
    chat = TextTokenizer(tmp_path).chat_template
    assert chat is not None
    reference = AutoTokenizer.from_pretrained(tmp_path)
    expected = reference.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert chat.render(MESSAGES) == expected == text
