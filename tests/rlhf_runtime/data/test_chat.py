from __future__ import annotations

import pytest

from rlhf_runtime.data.chat import ChatTemplate, TemplateRefusal

USER = [{"role": "user", "content": "<b>&"}]


def render(template: str) -> str:
    return ChatTemplate(template, {"bos_token": "<s>"}).render(USER)


def test_templates_have_what_transformers_gives_them() -> None:
    assert render("{{ bos_token }}") == "<s>"
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "<b>&"}]'
    assert render("{% for x in [1, 2] %}{% break %}{% endfor %}") == ""
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "<b>&!"
    assert render("{{ tools is none }} {{ add_generation_prompt }}") == "True True"


def test_the_date_is_fixed_so_that_a_resumed_run_sees_equal_prompts() -> None:
    assert render('{{ strftime_now("%Y-%m-%d") }}') == "2024-07-26"


@pytest.mark.parametrize(
    "template", ['{{ raise_exception("no") }}', "{{ messages[0].content + 1 }}"]
)
def test_what_a_template_refuses_is_told(template: str) -> None:
    with pytest.raises(TemplateRefusal):
        render(template)


@pytest.mark.parametrize("role", ["human", "gpt", "User"])
def test_a_role_that_no_model_knows_is_refused_unless_the_template_names_it(role: str) -> None:
    messages = [*USER, {"role": role, "content": "x"}]
    with pytest.raises(TemplateRefusal, match=rf"it has no role {role}, allowed system, user"):
        ChatTemplate("{{ messages[1].role }}", {}).render(messages)
    named = "{% if messages[1].role == '" + role + "' %}named{% endif %}"
    assert ChatTemplate(named, {}).render(messages) == "named"


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(TemplateRefusal, match="unsafe"):
        render("{{ messages.__class__.__mro__ }}")
