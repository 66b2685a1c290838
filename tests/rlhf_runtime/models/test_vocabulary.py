from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.rewards import ModelReward
from rlhf_runtime.models.errors import ModelIncomplete, VocabularyMismatch
from rlhf_runtime.models.vocabulary import (
    check_vocabularies,
    read_vocabulary,
    tokens_without_text,
)


@pytest.fixture
def other(tmp_path: Path, tiny_llama: Path) -> Path:
    """A copy of the builtin model that a test may change."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "other"))


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def rename_token(folder: Path, old: str, new: str) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[new] = vocabulary.pop(old)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_equal_vocabularies_pass(tiny_llama: Path, other: Path) -> None:
    check_vocabularies({})
    check_vocabularies({"actor": tiny_llama})
    check_vocabularies({"actor": tiny_llama, "critic": other, "reference": tiny_llama})


def test_only_the_tokens_matter_not_how_the_file_is_written(tiny_llama: Path, other: Path) -> None:
    file = other / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=7, sort_keys=True))
    check_vocabularies({"actor": tiny_llama, "critic": other})


def test_another_size_is_named_with_both_roles_and_sizes(tiny_llama: Path, other: Path) -> None:
    change(other / "config.json", vocab_size=128)
    with pytest.raises(VocabularyMismatch) as caught:
        check_vocabularies({"actor": tiny_llama, "reference": tiny_llama, "critic": other})
    assert (caught.value.reason, int(caught.value.exit_code)) == ("VocabularyMismatch", 3)
    assert "vocab_size 64 for actor and 128 for critic" in str(caught.value)


def test_equal_sizes_of_other_tokens_are_refused(tiny_llama: Path, other: Path) -> None:
    rename_token(other, "z", "Z")
    with pytest.raises(VocabularyMismatch, match="actor and critic .*mean different words"):
        check_vocabularies({"actor": tiny_llama, "critic": other})


def test_a_role_without_tokenizer_is_compared_by_size(tiny_llama: Path, other: Path) -> None:
    (other / "tokenizer.json").unlink()
    check_vocabularies({"actor": tiny_llama, "critic": other})
    change(other / "config.json", vocab_size=65)
    with pytest.raises(VocabularyMismatch):
        check_vocabularies({"actor": tiny_llama, "critic": other})


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(other: Path) -> None:
    change(other / "config.json", vocab_size=63)
    with pytest.raises(
        VocabularyMismatch, match="tokenizer of actor.* 64 tokens for vocab_size 63"
    ):
        check_vocabularies({"actor": other})


def test_added_tokens_and_lists_of_tokens_count(other: Path) -> None:
    (other / "tokenizer.json").write_text(
        json.dumps(
            {
                "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5]]},
                "added_tokens": [{"id": 9, "content": "<end>"}],
            }
        )
    )
    assert read_vocabulary(other).num_tokens == 10


def remove_tokens(folder: Path, *ids: int) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    tokens = content["model"]["vocab"]
    content["model"]["vocab"] = {token: n for token, n in tokens.items() if n not in ids}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_every_token_of_a_vocabulary_without_padding_has_a_text(tiny_llama: Path) -> None:
    assert tokens_without_text(tiny_llama) == ()


def test_padding_and_gaps_have_no_text(other: Path) -> None:
    change(other / "config.json", vocab_size=71)
    assert tokens_without_text(other) == (range(64, 71),)
    remove_tokens(other, 20, 30, 31, 63)
    assert tokens_without_text(other) == (range(20, 21), range(30, 32), range(63, 71))
    added = json.loads((other / "tokenizer.json").read_text())["added_tokens"]
    change(other / "tokenizer.json", added_tokens=[*added, {"id": 66, "content": "<end>"}])
    assert tokens_without_text(other)[2:] == (range(63, 66), range(67, 71))


def test_without_a_tokenizer_no_token_is_known_to_have_no_text(other: Path) -> None:
    change(other / "config.json", vocab_size=71)
    (other / "tokenizer.json").unlink()
    assert tokens_without_text(other) == ()


def test_models_that_nest_their_text_config_are_read(other: Path) -> None:
    (other / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 99}}))
    assert read_vocabulary(other).size == 99


def test_a_config_without_vocabulary_size_is_incomplete(other: Path) -> None:
    (other / "config.json").write_text("{}")
    with pytest.raises(ModelIncomplete, match="vocab_size"):
        read_vocabulary(other)
    (other / "config.json").write_text("[")
    with pytest.raises(ModelIncomplete, match="not valid JSON"):
        read_vocabulary(other)
    (other / "config.json").unlink()
    with pytest.raises(ModelIncomplete, match=r"without config\.json"):
        read_vocabulary(other)


def test_a_reward_model_may_have_a_tokenizer_of_its_own(tiny_llama: Path, other: Path) -> None:
    rename_token(other, "z", "Z")
    folders = {"actor": tiny_llama, "learned_model": other}
    model = {"path": str(other)}
    with pytest.raises(VocabularyMismatch, match="or write tokenizer: Own for the reward model"):
        check_vocabularies(folders, {"learned_model": ModelReward.model_validate(model)})
    own = ModelReward.model_validate(model | {"tokenizer": "Own"})
    check_vocabularies(folders, {"learned_model": own})
    change(other / "config.json", vocab_size=9)
    with pytest.raises(VocabularyMismatch, match="more tokens than its model: got 64 tokens for"):
        check_vocabularies(folders, {"learned_model": own})


@pytest.mark.parametrize(
    "content",
    [
        {"model": {"vocab": {}}},
        {"model": {"vocab": {"a": "0"}}},
        {"model": {"vocab": ["a"]}},
        {"model": {"vocab": None}},
        {"model": []},
        {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 3}]},
        {},
    ],
)
def test_a_tokenizer_without_vocabulary_is_incomplete(other: Path, content: dict[str, Any]) -> None:
    (other / "tokenizer.json").write_text(json.dumps(content))
    for read in (read_vocabulary, tokens_without_text):
        with pytest.raises(ModelIncomplete, match="has no vocabulary"):
            read(other)
