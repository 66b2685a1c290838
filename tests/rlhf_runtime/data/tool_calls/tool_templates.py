"""Small chat templates with tools, one for every format, and a tokenizer of bytes for them."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rlhf_api.spec.conversation import ToolFormat

_TURN = "{{ '<s>' + m.role + '\n' }}"
_BEGIN = "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
_TOOLS = "{% if tools %}{{ '<s>tools\n' + tools | tojson + '<e>\n' }}{% endif %}"


def lines(calls: str, tool: str = "m.content") -> str:
    """A template with `<s>role` and `<e>` around every message.

    Args:
        calls: the template of an assistant's calls.
        tool: the expression of an answer's text.
    """
    return (
        f"{_TOOLS}{{% for m in messages %}}{_TURN}{{% if m.role == 'tool' %}}{{{{ {tool} }}}}"
        "{% else %}{{ m.content or '' }}{% endif %}"
        f"{{% if m.tool_calls is defined %}}{calls}{{% endif %}}{{{{ '<e>\n' }}}}"
        f"{{% endfor %}}{_BEGIN}"
    )


def per_call(call: str) -> str:
    """A loop over the functions of an assistant's calls, named `f`."""
    return "{% for c in m.tool_calls %}{% set f = c.function %}" + "{{ " + call + " }}{% endfor %}"


HERMES = lines(
    per_call(
        r"""'<tool_call>\n{"name": "' + f.name + '", "arguments": ' + f.arguments | tojson """
        r"""+ '}\n</tool_call>'"""
    )
)
LLAMA = "{% set ns = namespace() %}" + lines(
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    + per_call(r"""'{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}'"""),
    "m.content | tojson",
).replace("{{ m.content or '' }}", "{{ '' if m.tool_calls is defined else m.content }}")
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if m.role == 'user' %}{% if tools %}"
    "{{ '[TOOLS]' + tools | tojson }}{% endif %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.tool_calls is defined %}{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' }}"
    "{{ ', ' if not loop.last }}{% endfor %}{{ ']<e>' }}{% elif m.role == 'tool' %}"
    '{{ \'[TOOL_RESULTS]{"content": \' + m.content | tojson + \', "call_id": "\' '
    "+ m.tool_call_id + '\"}[/TOOL_RESULTS]' }}"
    "{% else %}{{ m.content + '<e>' }}{% endif %}{% endfor %}"
)
MISTRAL_NAMES = lines(
    per_call("'[TOOL_CALLS]' + f.name + '[CALL_ID]' + c.id + '[ARGS]' + f.arguments | tojson")
)
GEMMA = (
    "{% macro value(x) %}{% if x is string %}{{ '<escape>' + x + '<escape>' }}"
    "{% elif x is mapping %}{{ '{' }}{% for k, v in x.items() %}{{ k + ':' + value(v) }}"
    "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}{% elif x is sequence %}{{ '[' }}"
    "{% for v in x %}{{ value(v) }}{{ ',' if not loop.last }}{% endfor %}{{ ']' }}"
    "{% else %}{{ x | tojson }}{% endif %}{% endmacro %}"
) + lines(
    per_call("'<start_function_call>call:' + f.name + value(f.arguments) + '<end_function_call>'")
)
_DEEPSEEK = (
    "{{ '<s>' + (tools | tojson if tools else '') }}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<｜User｜>' + m.content + '<｜Assistant｜>' }}"
    "{% elif m.role == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% else %}"
    "{{ m.content or '' }}{% if m.tool_calls is defined %}{{ '<｜tool▁calls▁begin｜>' }}"
    "{% for c in m.tool_calls %}{% set f = c.function %}CALL{% endfor %}"
    "{{ '<｜tool▁calls▁end｜>' }}{% endif %}{{ '<e>' }}{% endif %}{% endfor %}"
)
DEEPSEEK_V3 = _DEEPSEEK.replace(
    "CALL",
    "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + f.name + '\n```json\n' + f.arguments "
    "+ '\n```<｜tool▁call▁end｜>' }}",
)
"""Wants arguments as a text, as DeepSeek's own templates do."""
DEEPSEEK_V31 = _DEEPSEEK.replace(
    "CALL",
    "{{ '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + f.arguments "
    "+ '<｜tool▁call▁end｜>' }}",
)
HARMONY = (
    "{% for m in messages %}{% if m.tool_calls is defined %}{% set f = m.tool_calls[0].function %}"
    "{% if m.content %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' "
    "+ f.arguments | tojson + '<|call|>' }}{% elif m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<e>' }}"
    "{% elif m.role == 'tool' %}{{ '<|start|>functions.' + m.name + ' to=assistant<|message|>' "
    "+ m.content | tojson + '<|end|>' }}{% else %}"
    "{{ '<|start|>' + m.role + '<|message|>' + m.content + (tools | tojson if tools else '') "
    "+ '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
QWEN_XML = lines(
    "{% for c in m.tool_calls %}{% set f = c.function %}"
    "{{ '<tool_call>\n<function=' + f.name + '>\n' }}{% for k, v in f.arguments.items() %}"
    "{{ '<parameter=' + k + '>\n' + (v if v is string else v | tojson) + '\n</parameter>\n' }}"
    "{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}"
)
PYTHON = lines(
    "{% for c in m.tool_calls %}{% set f = c.function %}{{ '\n' + f.name + '(' }}"
    "{% for k, v in f.arguments.items() %}{{ k + '=' + v | tojson }}{{ ', ' if not loop.last }}"
    "{% endfor %}{{ ')' }}{% endfor %}"
)


EXAMPLE = (
    (Path(__file__).parents[4] / "examples" / "chat-templates" / "tools.jinja")
    .read_text(encoding="utf-8")
    .replace("<|im_start|>", "<s>")
    .replace("<|im_end|>", "<e>")
)
"""That of example 20, with the tokens of the tokenizer below."""


class Family(NamedTuple):
    """A format and a template that writes it."""

    format: ToolFormat
    template: str
    writes_words: bool = True
    """True if the template writes text beside calls."""
    several: bool = True
    """True if it writes several calls in a turn."""


FAMILIES = {
    "hermes": Family(ToolFormat.HERMES, HERMES),
    "llama": Family(ToolFormat.LLAMA, LLAMA, writes_words=False, several=False),
    "mistral": Family(ToolFormat.MISTRAL, MISTRAL, writes_words=False),
    "mistral names": Family(ToolFormat.MISTRAL, MISTRAL_NAMES),
    "gemma": Family(ToolFormat.GEMMA, GEMMA),
    "deepseek v3": Family(ToolFormat.DEEPSEEK, DEEPSEEK_V3),
    "deepseek v3.1": Family(ToolFormat.DEEPSEEK, DEEPSEEK_V31),
    "harmony": Family(ToolFormat.HARMONY, HARMONY, several=False),
    "qwen xml": Family(ToolFormat.QWEN_XML, QWEN_XML),
    "python": Family(ToolFormat.PYTHON, PYTHON),
    "example": Family(ToolFormat.HERMES, EXAMPLE),
}
TOKENS = ("<s>", "<e>", "<|call|>", "<|end|>", "<|start|>", "[TOOL_CALLS]", "[ARGS]", "<stop>")
END, CALL_END, OTHER_END = 1, 2, 7
"""The ids of `<e>`, `<|call|>` and `<stop>`, which all end a turn."""


def write_byte_tokenizer(folder: Path, template: str | None) -> None:
    """Write a tokenizer of bytes and a chat template.

    `<e>`, `<|call|>` and `<stop>` end a turn.
    """
    tokenizer = _characters(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _write(tokenizer, folder, template)


def write_space_tokenizer(folder: Path, template: str, scheme: str) -> None:
    """Write a tokenizer that writes a space before the first part of a text, or before every part.

    scheme: "first" or "always".
    """
    tokenizer = _characters(["▁", *string.printable])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    _write(tokenizer, folder, template)


def _characters(alphabet: Sequence[str]) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate([*TOKENS, *sorted(alphabet)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in TOKENS])
    return tokenizer


def _write(tokenizer: Tokenizer, folder: Path, template: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<e>"}))
    ends = {"eos_token_id": [END, CALL_END, OTHER_END]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
