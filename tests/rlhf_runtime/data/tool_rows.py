"""Rows with calls of tools, and a tokenizer that writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.tokenizer import TextTokenizer

from .conversation_rows import parts_of

NUMBERS = {name: {"type": "integer"} for name in ("a", "b")}
PARAMETERS = {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}
SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": PARAMETERS},
    }
    for name in ("add", "mul")
]
# Calls as Python writes them, all characters of which the tokenizer has.
TEMPLATE = """\
{%- if tools %}{{ "<tools>" }}{% for t in tools %}{{ t.function.name + ";" }}{% endfor %}{% endif %}
{%- for m in messages %}
    {{- "<" + m.role + ">" + (m.content or "") }}
    {%- for c in m.tool_calls or [] %}
        {{- "\n" + c.function.name + "(" }}
        {%- for name, value in ARGUMENTS.items() %}
            {{- name + "=" + value | tojson + ("" if loop.last else ",") }}
        {%- endfor %}
        {{- ")" }}
    {%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""
COLUMNS: dict[str, Any] = {"promptField": "prompt", "answerField": "answer"}


def tokenizer_with(template: str | None, folder: Path) -> TextTokenizer:
    write_tokenizer(folder)
    if template is not None:
        text = template.replace("ARGUMENTS", "c.function.arguments")
        (folder / "chat_template.jinja").write_text(text)
    return TextTokenizer(folder)


def call(name: str, id: str | None = None, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def calling(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answer(content: str, **parts: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **parts}


def trained(table: PromptTable, tokenizer: TextTokenizer) -> list[tuple[bool, str]]:
    return parts_of(tokenizer, table.answers, table.answers_mask)
