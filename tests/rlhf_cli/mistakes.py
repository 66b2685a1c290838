"""What a new user gets wrong, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Mistake:
    """Something that a new user gets wrong."""

    says: str
    """A pattern of what is told."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """Of the manifest's spec."""
    rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Of the data, by their numbers."""
    damage: Callable[[Path], object] | None = None
    """To the model's folder."""
    data_damage: Callable[[Path], object] | None = None
    """To the file of the data."""
    operation: str = ""
    """Of an algorithm of one's own."""


def function(entrypoint: str, **parameters: Any) -> dict[str, Any]:
    given = {"entrypoint": entrypoint, "parameters": parameters}
    return {"rewards": [{"name": "right", "function": given}]}


def configured(**changes: Any) -> Callable[[Path], object]:
    """Change what a model's config.json says."""

    def damage(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return damage


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def locked(name: str = "") -> Callable[[Path], object]:
    """Let nobody read a file of the model, or enter its folder."""
    return lambda folder: (folder / name).chmod(0)


def swapped_tokens(folder: Path) -> None:
    """Another tokenizer than that of the folder beside it."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["0"], vocabulary["1"] = vocabulary["1"], vocabulary["0"]
    file.write_text(json.dumps(tokenizer))


TOO_LONG = "/" + "a" * 300
"""Of which the system says something else than that nothing is there."""
WARM = {"schedule": {"warmStart": {"maxSteps": 1, "promptsPerStep": 4}}}
MISTAKES = {
    "no such file": Mistake(
        r"DataNotFound: data\.train\.path is not a file: got /no/rows\.jsonl \(nothing there\)",
        {"data": {"train": {"path": "/no/rows.jsonl"}}},
    ),
    "a folder of data": Mistake(
        r"DataNotFound: .*\(a folder\), allowed a \.parquet", {"data": {"train": {"path": "/tmp"}}}
    ),
    "a pattern of data that matches nothing": Mistake(
        r"DataNotFound: data\.train\.path matches no file: got /no/\*\.jsonl \(nothing there\)",
        {"data": {"train": {"path": "/no/*.jsonl"}}},
    ),
    "data that may not be read": Mistake(
        r"DataUnreadable: data\.train\.path cannot be read: got .*rows\.jsonl \(Permission",
        data_damage=lambda file: file.chmod(0),
    ),
    "a path of data that no system has": Mistake(
        r"DataUnreadable: data\.train\.path cannot be read: got .*\(File name too long\)",
        {"data": {"train": {"path": f"{TOO_LONG}.jsonl"}}},
    ),
    "data of no bytes": Mistake(
        r"EmptyDataset: data\.train\.path is an empty file: got .* with 0 bytes",
        data_damage=lambda file: file.write_text(""),
    ),
    "data of nobody": Mistake(
        r"job\.yaml:\d+:\d+: spec\.data\.train\.path: starts with the home of a user .*: "
        r"got ~nobody-at-all/rows\.jsonl, allowed ~/",
        {"data": {"train": {"path": "~nobody-at-all/rows.jsonl"}}},
    ),
    "no such column": Mistake(
        "MissingField: data.train.promptField .*: got question, allowed prompt, answer",
        {"data": {"train": {"promptField": "question"}}},
    ),
    "two columns that are not there": Mistake(
        "got question(.|\n)*data.train.answerField .*: got solution",
        {"data": {"train": {"promptField": "question", "answerField": "solution"}}},
    ),
    "a column of held-out rows": Mistake(
        "data.evaluation.promptField .*got question",
        {"data": {"evaluation": {"path": "DATA", "promptField": "question"}}},
    ),
    "a system prompt that the template refuses": Mistake(
        r"InvalidRow: .* has 32 rows .*: got rows 0, 1, 2, 3, 4 and 27 more: the chat template .*"
        "all have this problem",
        {"data": {"train": {"systemPrompt": "add"}}},
        damage=lambda folder: (folder / "chat_template.jinja").write_text(
            "{{ raise_exception('no system') if messages[0].role == 'system' }}"
        ),
    ),
    "a prompt over the limit": Mistake(
        r"PromptTooLong: data\.train \(.*rows\.jsonl\) has 2 prompts over the limit .*row 3 with "
        r"20 tokens, row 5 with 30 tokens, the longest row 5 with 30; allowed "
        r"rollout\.maxPromptTokens = 16; raise it \(30 takes all\)",
        rows={3: {"prompt": "1" * 20}, 5: {"prompt": "1" * 30}},
    ),
    "rows of several faults": Mistake(
        r"InvalidRow: .*row 1: prompt is null or missing, row 2: prompt is an empty(.|\n)*"
        "PromptTooLong: .*row 7 with 20 tokens(.|\n)*2 problems in 1 file",
        rows={1: {"prompt": None}, 2: {"prompt": " "}, 7: {"prompt": "1" * 20}},
    ),
    "an answer that is none": Mistake(
        "InvalidRow: .*row 4: answer is NaN",
        {"data": {"train": {"answerField": "answer"}}},
        {4: {"answer": float("nan")}},
    ),
    "fewer rows than a step takes": Mistake(
        "DatasetTooSmall: .*got 32 usable rows, allowed at least schedule.promptsPerStep = 64",
        {"schedule": {"promptsPerStep": 64}},
    ),
    "a warm start without answers": Mistake(
        "MissingAnswer: .*the first is row 9", WARM, rows={9: {"answer": None}}
    ),
    "an answer that no response holds": Mistake(
        "InvalidRow: .*row 2: an answer of 41 tokens with the end token, over 16",
        WARM,
        rows={2: {"answer": "1" * 40}},
    ),
    "a verifier by its file": Mistake(
        r"InvalidReward: the reward right \(addv\.py:score\) .*did you mean addv:score\?",
        function("addv.py:score"),
    ),
    "a verifier that is not there": Mistake(
        "InvalidReward: .*got scor, allowed exact, score", function("addv:scor")
    ),
    "a verifier that returns one number for all samples": Mistake(
        r"^\S+yaml:\d+:\d+: InvalidReward: the reward right \(builtins:len\) gives no score: got "
        r"raised for the answer '1', data\.train: row 0, allowed (.|\n)*TypeError: got int for 1 ",
        function("builtins:len") | WARM,
    ),
    "a verifier's module that is not there": Mistake(
        "InvalidReward: .*no such module: got nowhere", function("nowhere:score")
    ),
    "a verifier that does not import": Mistake(
        "InvalidReward: .*raised(.|\n)*No module named 'no_such_package'", function("needy:score")
    ),
    "a parameter that a verifier does not have": Mistake(
        r"InvalidReward: .*got an unexpected keyword argument 'scale'; got score\(samples\)",
        function("addv:score", scale=2.0),
    ),
    "a field that rows do not have": Mistake(
        r"job\.yaml:\d+:\d+: InvalidReward: .*do not have: got anwser, allowed prompt, answer; did "
        r"you mean answer\? write parameters: \{field: NAME\}",
        function("rlhf_runtime.rewards.exact_match:score", field="anwser"),
    ),
    "two verifiers, both wrong": Mistake(
        r"\(addv:one\)(.|\n)*\(addv:two\)(.|\n)*2 problems in 1 file",
        {
            "rewards": [
                {"name": name, "function": {"entrypoint": f"addv:{name}"}}
                for name in ("one", "two")
            ]
        },
    ),
    "a goal that no verifier measures": Mistake(
        r"InvalidReward: no verifier measures exact_match, which schedule\.warmStart\.stopAt",
        {
            "schedule": {
                "warmStart": {"maxSteps": 1, "promptsPerStep": 4, "stopAtExactMatch": 0.5},
            },
            "data": {"evaluation": {"path": "DATA"}},
        },
    ),
    "a folder of code that is not there": Mistake(
        r"job\.yaml:\d+:\d+: spec\.code\.local: not a folder: got /.*/nowhere",
        {"code": {"local": "./nowhere"}},
    ),
    "a folder of code that no system has": Mistake(
        r"job\.yaml:\d+:\d+: spec\.code\.local: not a folder: got .*\(File name too long\)",
        {"code": {"local": TOO_LONG}},
    ),
    "no such model": Mistake(
        r"^\S+yaml:\d+:\d+: ModelNotFound: .*got /no/model \(nothing there\).*\n1 problem",
        {"models": {"actor": {"source": {"path": "/no/model"}}}},
    ),
    "a model without weights": Mistake(
        "ModelIncomplete: .*missing weights",
        damage=lambda folder: (folder / "model.safetensors").unlink(),
    ),
    "a path of a model that no system has": Mistake(
        r"ModelNotFound: .*\(File name too long\)",
        {"models": {"actor": {"source": {"path": TOO_LONG}}}},
    ),
    "a model that may not be entered": Mistake(
        r"ModelIncomplete: a part of a model cannot be read: got .*/model \(Permission denied\)",
        damage=locked(),
    ),
    "weights that may not be read": Mistake(
        r"ModelIncomplete: a part of a model cannot be read: got .*\.safetensors \(Permission",
        damage=locked("model.safetensors"),
    ),
    "a config that may not be read": Mistake(
        r"^\S+yaml:\d+:\d+: ModelIncomplete: .*config\.json \(Permission.*\n1 problem in 1 file$",
        damage=locked("config.json"),
    ),
    "a tokenizer's settings that may not be read": Mistake(
        r"TokenizerUnusable: a file of the tokenizer cannot be read: got .*_config\.json \(Perm",
        damage=locked("tokenizer_config.json"),
    ),
    "a chat template in another encoding": Mistake(
        r"TokenizerUnusable: not UTF-8 text: got .*\.jinja: 'utf-8' codec",
        damage=lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xe9"),
    ),
    "weights that are cut off": Mistake("ModelIncomplete: .*is cut off", damage=cut_off),
    "a config of fewer layers than its weights": Mistake(
        r"UnsupportedModel: .*no layer of the model has: got model\.layers\.1\.\S+ and 8 more in",
        damage=configured(num_hidden_layers=1),
    ),
    "a config of a wider model than its weights": Mistake(
        r"UnsupportedModel: .*got model\.layers\.0\.mlp\.gate_proj\.weight of \[\d+, 128\] in "
        r".*/model, allowed \[999, 128\] and 5 more; copy config\.json and weights of one model",
        damage=configured(intermediate_size=999),
    ),
    "a model without a config": Mistake(
        "ModelIncomplete: .*missing config.json",
        damage=lambda folder: (folder / "config.json").unlink(),
    ),
    "a model without a tokenizer": Mistake(
        r"TokenizerUnusable: no tokenizer\.json in the model's folder",
        damage=lambda folder: (folder / "tokenizer.json").unlink(),
    ),
    "an index that names no files": Mistake(
        r"ModelIncomplete: an index without weight_map: got .*index\.json",
        damage=lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
    ),
    "a config that is no JSON": Mistake(
        r"^\S+yaml:\d+:\d+: ModelIncomplete: not valid JSON: got .*config\.json.*\n1 problem",
        damage=lambda folder: (folder / "config.json").write_text("{"),
    ),
    "a tokenizer without tokens": Mistake(
        r"ModelIncomplete: tokenizer\.json has no vocabulary",
        damage=lambda folder: (folder / "tokenizer.json").write_text("{}"),
    ),
    "a tokenizer of another model": Mistake(
        "VocabularyMismatch: .*actor has more tokens than its model",
        damage=configured(vocab_size=9),
    ),
    "roles that disagree on tokens": Mistake(
        "VocabularyMismatch: actor and reference",
        {
            "algorithm": {"grpo": {"klCoefficient": 0.1}},
            "models": {"reference": {"source": {"builtin": "TinyLlama"}}},
        },
        damage=swapped_tokens,
    ),
    "heads that no engine computes": Mistake(
        "NotOffered: actor generates with a model .*got heads of 16, allowed 32, 48, 64",
        damage=configured(head_dim=16),
    ),
    "ranks that do not share heads": Mistake(
        r"training\.parallelism\.tensor: .*got tensor 3, and 4 attention",
        {"models": {"actor": {"training": {"engine": "Megatron", "parallelism": {"tensor": 3}}}}},
    ),
    "a config of more layers than there are": Mistake(
        r"ModelIncomplete: a model without all its weights: got .* without model\.layers\.2\.",
        damage=configured(num_hidden_layers=3),
    ),
    "a damaged model of several roles": Mistake(
        r"^\S+yaml:\d+:\d+: ModelIncomplete: .*without model\.layers\.2\..*\n1 problem in 1 f",
        {"algorithm": {"type": "PPO", "ppo": {"klCoefficient": 0.1}}},
        damage=configured(num_hidden_layers=3),
    ),
    "a classifier as policy": Mistake(
        "WrongHead: a model without an output over the vocabulary",
        damage=configured(architectures=["LlamaForSequenceClassification"]),
    ),
    "a quantized model": Mistake(
        "UnsupportedModel: a model with quantized weights.*got awq",
        damage=configured(quantization_config={"quant_method": "awq"}),
    ),
    "a model of too few positions": Mistake(
        r"ContextTooShort: .*maxResponseTokens = 32, allowed max_position_embeddings = 31",
        damage=configured(max_position_embeddings=31),
    ),
    "a GPU of another name": Mistake(
        r"^\S+job\.yaml:\d+:\d+: PlanUnknown: .*got gpu H10O .*did you mean H100\?",
        {"resources": {"nodePools": [{"name": "gpus", "gpu": "H10O"}]}},
    ),
    "a custom function that is not there": Mistake(
        r"InvalidAlgorithm: .*mine\.py:12: no such name for the custom operation: got mine:shift",
        operation='Custom("mine:shift", reads=["reward_scores"], writes=["x"])',
    ),
    "a custom function's argument": Mistake(
        r"InvalidAlgorithm: .*mine\.py:12: .*mine:shifted does not take its arguments: .*'by'",
        operation='Custom("mine:shifted", reads=["reward_scores"], writes=["x"])',
    ),
    "a join over what was generated": Mistake(
        r"InvalidAlgorithm: .*mine\.py:12: a join overwrites what was generated: got response_text",
        operation=(
            'Custom("mine:shifted", reads=["response_text"], writes=["response_text"], '
            'parameters={"by": 1})'
        ),
    ),
    "an algorithm's module that is not there": Mistake(
        "InvalidAlgorithm: no such module for the algorithm: got their:Mine",
        {"algorithm": {"type": "Custom", "custom": {"entrypoint": "their:Mine"}}},
    ),
    "a tool without type hints": Mistake(
        r"job\.yaml:\d+:\d+: InvalidEnvironment: .*a of the method Untyped\.add has no type hint",
        {"rollout": {"environment": {"entrypoint": "adders:Untyped"}}},
    ),
    "a reward that the environment does not give": Mistake(
        r"InvalidEnvironment: .* gives no reward: got no method reward in adders:Adder",
        {
            "rollout": {"environment": {"entrypoint": "adders:Adder"}},
            "rewards": [{"environment": {}}],
        },
    ),
    "calls without a chat template": Mistake(
        "ChatTemplateUnusable: calls of tools in the format Hermes need a chat template",
        {"rollout": {"environment": {"entrypoint": "adders:Adder", "toolFormat": "Hermes"}}},
    ),
    "rows that choose no environment": Mistake(
        "InvalidRow: .*environment is .*allowed the name of an environment: one, two",
        {
            "rollout": {"environment": {"classes": {"one": "adders:Adder", "two": "adders:Adder"}}},
        },
    ),
    "an address of checkpoints that depends on the folder": Mistake(
        r"StorageUnusable: .*got file://kept \(.*write file:///\.\.\.\)",
        {"checkpoint": {"storage": {"uri": "file://kept"}}},
    ),
    "an address that nobody knows": Mistake(
        "DataNotFound(.|\n)*StorageUnusable: .*Protocol not known: s4(.|\n)*2 problems in 1 file",
        {"checkpoint": {"storage": {"uri": "s4://a/b"}}, "data": {"train": {"path": "/no.jsonl"}}},
    ),
    "several that the system tells": Mistake(
        "ModelIncomplete: .*Permission(.|\n)*DataUnreadable: .*too long(.|\n)*2 problems in 1 file",
        {"data": {"train": {"path": f"{TOO_LONG}.jsonl"}}},
        damage=locked("model.safetensors"),
    ),
    "everything at once": Mistake(
        r"spec\.code\.local: not a folder(.|\n)*ModelIncomplete: (.|\n)*DataNotFound: (.|\n)*"
        "3 problems in 1 file",
        {"code": {"local": "./nowhere"}, "data": {"train": {"path": "/no/rows.jsonl"}}},
        damage=cut_off,
    ),
}
