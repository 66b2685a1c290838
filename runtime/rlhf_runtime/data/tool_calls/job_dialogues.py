"""The dialogues of a job's model with the tools of its environments."""

from __future__ import annotations

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.row_sources import TemplateUse
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.settings import EnvironmentDescription


def job_dialogues(
    spec: RLHFJobSpec, tokenizer: TextTokenizer, description: EnvironmentDescription
) -> dict[str, ToolDialogue]:
    """Return the dialogues by environment.

    Args:
        spec: with rollout.environment.
        tokenizer: of the policy.
        description: of the environments.

    Raises:
        ToolsUnusable: the schemas cannot be used.
        ChatTemplateUnusable: the chat template cannot write the tools or their answers.
    """
    environment, source = spec.rollout.environment, spec.data.train.parts[0]
    assert environment is not None, "the job has no environment"
    _require_one_template(spec)
    return {
        name: ToolDialogue(
            tokenizer,
            description.tool_schemas(name),
            environment.tool_format,
            source.chat_template_arguments,
            uses_template=source.chat_template is not TemplateUse.NEVER,
        )
        for name in description.environments
    }


def _require_one_template(spec: RLHFJobSpec) -> None:
    """Refuse data whose rows are rendered in several ways: later turns are rendered in one.

    Raises:
        ChatTemplateUnusable: chatTemplate or its arguments differ from row to row.
    """
    evaluation = spec.data.evaluation
    parts = [*spec.data.train.parts, *(() if evaluation is None else evaluation.parts)]
    first, *others = parts
    by_row = any(part.chat_template_arguments_field is not None for part in parts)
    differs = any(
        (part.chat_template, part.chat_template_arguments)
        != (first.chat_template, first.chat_template_arguments)
        for part in others
    )
    if by_row or differs:
        got = "chatTemplateArgumentsField" if by_row else "sources with different ones"
        raise ChatTemplateUnusable(
            f"conversations with tools are rendered in one way: got {got}, allowed one value of "
            "chatTemplate and of chatTemplateArguments for data.train and data.evaluation; write "
            "the same for all"
        ).at("spec", "data")
