"""Tokenizers and a few rows of arithmetic problems, made on the spot."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.tokenizer import TextTokenizer

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == "critic" %}{{ raise_exception("critic is not a role") }}{% endif %}
    {{- "<" + message.role + ">" + message.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    """The character tokenizer, without chat template."""
    write_tokenizer(tmp_path / "plain")
    return TextTokenizer(tmp_path / "plain")


@pytest.fixture
def chat_tokenizer(tmp_path: Path) -> TextTokenizer:
    """The character tokenizer with a chat template."""
    write_tokenizer(tmp_path / "chat")
    (tmp_path / "chat" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return TextTokenizer(tmp_path / "chat")


@pytest.fixture
def problems() -> list[dict[str, str]]:
    """Rows in the form of GSM8K."""
    return [
        {
            "question": f"anna has {number} apples and buys {number + 1}. how many has she?",
            "answer": f"{number} + {number + 1} = {2 * number + 1}\n#### {2 * number + 1}",
        }
        for number in range(1, 9)
    ]
