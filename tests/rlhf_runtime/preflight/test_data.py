"""What is checked of data, beside what users get wrong (tests/rlhf_cli/mistakes.py)."""

from __future__ import annotations

import json
from pathlib import Path
from pkgutil import resolve_name

import pytest

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.character_tokenizer import TOKENS, write_tokenizer
from rlhf_runtime.data.load import PROMPTS_ONLY, DataUse
from rlhf_runtime.preflight import data as module
from rlhf_runtime.preflight.data import check_data, check_reward_tokenizers
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.reference_answers import READERS

from ..data.small_tokenizers import END, TURNS, write_base_tokenizer


def spec_of(path: Path, rewards: int = 1) -> RLHFJobSpec:
    judges = [
        {"name": f"judge{number}", "model": {"path": "/judge", "tokenizer": "Own"}}
        for number in range(rewards)
    ]
    return RLHFJobSpec.model_validate(
        {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
            "data": {"train": {"path": str(path)}},
            "rewards": judges,
            "rollout": {"samplesPerPrompt": 2, "maxPromptTokens": 16, "maxResponseTokens": 16},
            "schedule": {"steps": 1, "promptsPerStep": 2},
        }
    )


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_a_large_list_is_left_to_workers_where_time_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It would be in memory before the first row is there."""
    monkeypatch.setattr(module, "MAX_UNSTREAMED_BYTES", 1 << 20)
    write_tokenizer(tmp_path)
    file = tmp_path / name
    file.write_text(json.dumps([{"prompt": "1" * 1000, "answer": "1"}] * 2000))
    quick, thorough = Findings(), Findings()
    check_data(spec_of(file), PROMPTS_ONLY, tmp_path, 2.0, quick)
    assert not quick.gathered.errors
    assert quick.unchecked == [
        f"data.train: workers read {file} when they start: its first row comes after more "
        "than 1 MiB, as in a list (write a row in each line)"
    ]
    check_data(spec_of(file), PROMPTS_ONLY, tmp_path, None, thorough)
    (error,) = thorough.gathered.errors
    assert error.reason == "PromptTooLong" and not thorough.unchecked


def test_errors_of_reward_models_are_told_in_their_order(tmp_path: Path) -> None:
    findings = Findings()
    spec = spec_of(tmp_path / "rows.jsonl", rewards=8)
    folders = {role: tmp_path / role for role in reversed(spec.reward_models)}
    check_reward_tokenizers(spec, folders, findings)
    told = [str(error).split(" with ")[0].rpartition("/")[2] for error in findings.gathered.errors]
    assert told == list(spec.reward_models)


def test_every_source_is_checked_and_described(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    for name, rows in {"a": ["1", "22"], "b": ["3"], "c": ["22", "4"], "d": [" "]}.items():
        text = "".join(json.dumps({"prompt": row, "answer": "1"}) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)

    def checked(*train: str) -> Findings:
        paths = {"train": train, "evaluation": ("c",)}
        data = {
            split: {"sources": [{"path": f"{tmp_path}/{name}.jsonl"} for name in names]}
            for split, names in paths.items()
        }
        document = spec_of(tmp_path).model_dump(by_alias=True, exclude_unset=True)
        findings = Findings()
        spec = RLHFJobSpec.model_validate({**document, "data": data})
        check_data(spec, PROMPTS_ONLY, tmp_path, None, findings)
        return findings

    findings = checked("a", "b")
    assert not findings.gathered.errors
    assert [fact.split(" of ")[0] for fact in findings.facts if "longest" in fact] == [
        "data.train.sources[0]: 2 rows",
        "data.train.sources[1]: 1 rows",
        "data.evaluation.sources[0]: 2 rows",
    ]
    assert findings.warnings == [
        "1 of 2 prompts of data.evaluation are also in data.train: the evaluation measures what "
        "was learned by heart; take other rows for one of them"
    ]
    (invalid,) = checked("a", "d").gathered.errors
    assert str(invalid).startswith("data.train.sources[1] (")
    assert invalid.location == ("spec", "data", "train", "sources", 1)


GYM = "rlhf_runtime.rewards.reasoning_gym:score"


@pytest.mark.parametrize("seed", [None, 3])
def test_generated_prompts_that_are_trained_and_held_out_are_a_warning(
    tmp_path: Path, seed: int | None
) -> None:
    pytest.importorskip("reasoning_gym", reason="an extra that needs a C compiler")
    write_tokenizer(tmp_path)
    # Texts of letters and digits, as the character tokenizer has.
    tasks = {"dataset": "spell_backward", "size": 8}
    held_out = tasks if seed is None else tasks | {"seed": seed}
    document = spec_of(tmp_path).model_dump(by_alias=True, exclude_unset=True)
    data = {"train": {"reasoningGym": tasks}, "evaluation": {"reasoningGym": held_out}}
    changes = {
        "data": data,
        "rewards": [{"function": {"entrypoint": GYM}}],
        "rollout": {"samplesPerPrompt": 2, "maxPromptTokens": 256},
    }
    findings = Findings()
    spec = RLHFJobSpec.model_validate({**document, **changes})
    check_data(spec, PROMPTS_ONLY, tmp_path, None, findings)
    assert not findings.gathered.errors
    expected = [] if seed is None else ["5 of 8 prompts of data.evaluation are also in data.train"]
    assert [warning.split(":")[0] for warning in findings.warnings] == expected


def test_the_verifier_of_generated_tasks_needs_their_rows(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1", "answer": "1"}\n' * 2)
    document = spec_of(file).model_dump(by_alias=True, exclude_unset=True)
    rewards = [{"function": {"entrypoint": GYM}}]
    findings = Findings()
    spec = RLHFJobSpec.model_validate({**document, "rewards": rewards})
    check_data(spec, PROMPTS_ONLY, tmp_path, None, findings)
    (error,) = findings.gathered.errors
    assert "take rows of reasoningGym, or another verifier" in str(error)


def test_a_response_that_would_end_at_an_ordinary_word_is_a_warning(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    token = TOKENS.index("7")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": token}))
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1", "answer": "1"}\n' * 2)
    findings = Findings()
    check_data(spec_of(file), PROMPTS_ONLY, tmp_path, None, findings)
    (warning,) = findings.warnings
    assert f"got '7', as token {token} of {tmp_path}" in warning and not findings.gathered.errors


def test_a_package_that_only_workers_have_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path)
    monkeypatch.setattr(module.reasoning_gym_datasets, "is_installed", lambda: False)
    data = {"train": {"reasoningGym": {"dataset": "chain_sum"}}}
    document = spec_of(tmp_path).model_dump(by_alias=True, exclude_unset=True)
    spec = RLHFJobSpec.model_validate({**document, "data": data})
    findings = Findings()
    check_data(spec, PROMPTS_ONLY, tmp_path, None, findings, one_machine=False)
    assert not findings.gathered.errors and findings.unchecked == [
        "data.train: workers make rows of chain_sum when they start: the package reasoning-gym is "
        "not on this machine"
    ]


def test_the_end_token_that_only_the_template_has_is_shown(tmp_path: Path) -> None:
    write_base_tokenizer(tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1", "answer": "1"}\n' * 2)
    findings = Findings()
    check_data(spec_of(file), PROMPTS_ONLY, tmp_path, None, findings)
    assert findings.facts[0] == (
        f"a response ends with '<end>', too: the chat template of {tmp_path} writes this token, "
        f"{END}, behind answers, and no file lists it as an end token"
    )
    assert not findings.warnings and not findings.gathered.errors


def checked(folder: Path, use: DataUse, *rows: dict[str, str]) -> Findings:
    """Findings about rows, with the tokenizer of a folder."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = spec_of(file).model_dump(by_alias=True, exclude_unset=True)
    document["data"]["train"]["answerField"] = "answer"
    document["rollout"]["maxPromptTokens"] = 64
    findings = Findings()
    check_data(RLHFJobSpec.model_validate(document), use, folder, None, findings)
    assert not findings.gathered.errors
    return findings


ROW = {"prompt": "1", "answer": "2"}


def test_listed_end_tokens_that_the_tokenizer_lacks_are_a_warning(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = {"eos_token_id": [128001, 128009, 1], "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert checked(tmp_path, PROMPTS_ONLY, ROW, ROW).warnings == [
        "the model's files name an end token that its tokenizer does not have: got 128001, 128009 "
        f"in config.json or generation_config.json of {tmp_path}, with a tokenizer of 64 tokens; "
        "check that the tokenizer belongs to the model"
    ]


@pytest.mark.parametrize(("size", "is_unusual"), [(64, False), (71, False), (72, True)])
def test_a_large_share_of_unused_vocabulary_is_a_warning(
    tmp_path: Path, size: int, is_unusual: bool
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 1, "vocab_size": size}))
    warning = (
        f"11% of the model's vocabulary has no token: got vocab_size 72 for 64 tokens in {tmp_path}"
        "; check that the tokenizer belongs to the model"
    )
    assert checked(tmp_path, PROMPTS_ONLY, ROW, ROW).warnings == ([warning] if is_unusual else [])


def test_the_first_prompt_is_shown_with_the_ids_of_its_tokens(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    long = {"prompt": "0123456789" * 2 + "abcdef", "answer": "2"}
    for row, ids in (
        ({"prompt": "10=", "answer": "2"}, "4 3 40"),
        (
            {**long, "prompt": long["prompt"][2:]},
            "5 6 7 8 9 10 11 12 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18",
        ),
        (long, "3 4 5 6 7 8 9 10 11 12 3 4 ... 7 8 9 10 11 12 13 14 15 16 17 18"),
    ):
        facts = checked(tmp_path, PROMPTS_ONLY, row, ROW).facts
        assert f"data.train: row 0, prompt, ids of tokens: {ids}" in facts


def test_texts_that_have_the_added_special_token_are_a_warning(tmp_path: Path) -> None:
    write_base_tokenizer(tmp_path, "{{ bos_token }}" + TURNS)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<begin>"}))
    rows = [
        {"prompt": "1", "answer": "2"},
        {"prompt": "1", "answer": "2<end>"},
        {"prompt": "1", "answer": "2<eos>"},
        {"prompt": "1", "answer": "<end>2"},
    ]
    begins = (
        "data.train: 4 of 4 prompts begin with two begin tokens ('<begin>'): remove its text from "
        "the data or from the chat template"
    )
    ends = (
        "data.train: 2 of 4 answers end with two end tokens: remove the end token's text from the "
        "data"
    )
    answers = DataUse(trains_on_answers=True)
    assert checked(tmp_path, answers, *rows).warnings == [begins, ends]
    assert checked(tmp_path, PROMPTS_ONLY, *rows).warnings == [begins]
    (tmp_path / "chat_template.jinja").write_text(TURNS)
    assert checked(tmp_path, PROMPTS_ONLY, *rows).warnings == []


def test_a_list_of_files_is_described_and_its_lists_are_left_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"prompt": "1"}\n' * 2)
    (tmp_path / "b.json").write_text(json.dumps([{"prompt": "22"}]))
    document = spec_of(tmp_path).model_dump(by_alias=True, exclude_unset=True)
    paths = [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.json"]
    spec = RLHFJobSpec.model_validate({**document, "data": {"train": {"paths": paths}}})
    findings, quick = Findings(), Findings()
    check_data(spec, PROMPTS_ONLY, tmp_path, None, findings)
    assert findings.facts[0] == (
        f"data.train: 3 rows of 2 paths; the longest prompt is row 0 of {paths[1]} with 2 tokens "
        "(rollout.maxPromptTokens = 16)"
    )
    monkeypatch.setattr(module, "MAX_UNSTREAMED_BYTES", 17)
    check_data(spec, PROMPTS_ONLY, tmp_path, 2.0, quick)
    (unchecked,) = quick.unchecked
    assert unchecked.startswith(f"data.train: workers read {paths[1]} when they start: ")


@pytest.mark.parametrize("entrypoint", READERS)
def test_the_verifiers_whose_answers_are_checked_exist(entrypoint: str) -> None:
    assert callable(resolve_name(entrypoint))
