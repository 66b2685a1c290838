"""First prompts of conversations with tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt
from rlhf_api.spec.row_sources import DataSource, TemplateUse
from rlhf_runtime.data.prompts import build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentDescription, ToolFacts

from . import tool_templates as templates
from .conversations import TOOLS, schema

LIMITS = RowLimits(5000, 5000, OnInvalidRow.FAIL, OnLongPrompt.FAIL, 1)


def test_a_prompt_names_the_tools_of_its_row_by_the_template_for_tools(tmp_path: Path) -> None:
    templates.write_byte_tokenizer(tmp_path, None)
    default = {"name": "default", "template": templates.lines("")}
    for_tools = {"name": "tool_use", "template": templates.QWEN_XML}
    settings = {"eos_token": "<e>", "chat_template": [default, for_tools]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = TextTokenizer(tmp_path)
    assert tokenizer.tool_template is not None
    other = [schema("other")]
    environment = EnvironmentDescription(
        {
            name: ClassFacts({str(n): ToolFacts(tool, True) for n, tool in enumerate(tools)})
            for name, tools in {"a": TOOLS, "b": other}.items()
        }
    )
    rows = [{"prompt": "1", "environment": name} for name in ("b", "a")]
    table = build_prompt_table(
        rows,
        DataSource(path="rows.jsonl"),
        SourceSetting(Split.TRAIN),
        tokenizer,
        LIMITS,
        environment=environment,
    )
    message = [{"role": "user", "content": "1"}]
    assert [tokenizer.text_of(run.tolist()) for run in table.prompts.runs()] == [
        tokenizer.tool_template.render(message, tools=tools) for tools in (other, TOOLS)
    ]


def write_opening_tokenizer(folder: Path, for_tools: str | None) -> None:
    """Write a tokenizer that opens every text with `<s>`, and a chat template for tools alone."""
    templates.write_byte_tokenizer(folder, None)
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(file))
    named = [] if for_tools is None else [{"name": "tool_use", "template": for_tools}]
    settings = {"eos_token": "<e>", "chat_template": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("for_tools", "use"),
    [
        (templates.QWEN_XML, TemplateUse.AUTO),
        (templates.QWEN_XML, TemplateUse.NEVER),
        (None, TemplateUse.AUTO),
    ],
)
def test_a_prompt_with_an_observation_is_opened_like_the_prompts_of_the_data(
    tmp_path: Path, for_tools: str | None, use: TemplateUse
) -> None:
    write_opening_tokenizer(tmp_path, for_tools)
    tokenizer = TextTokenizer(tmp_path)
    facts = ClassFacts({str(n): ToolFacts(tool, True) for n, tool in enumerate(TOOLS)})
    table = build_prompt_table(
        [{"prompt": "1"}],
        DataSource(path="rows.jsonl", chat_template=use),
        SourceSetting(Split.TRAIN),
        tokenizer,
        LIMITS,
        environment=EnvironmentDescription({"": facts}),
    )
    dialogue = ToolDialogue(tokenizer, TOOLS, uses_template=use is not TemplateUse.NEVER)
    tokens = dialogue.prompt_tokens(table.texts[0]).tolist()
    assert tokens == next(iter(table.prompts.runs())).tolist()
    assert tokens[0] == 0 != tokens[1], "one token opens it: the template's, or the tokenizer's"
