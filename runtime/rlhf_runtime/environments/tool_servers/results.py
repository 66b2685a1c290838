"""Results of a server's tools as texts for the model. Pure."""

from __future__ import annotations

from mcp import types

from rlhf_runtime.environments.returned_values import answer_text


def result_text(result: types.CallToolResult) -> str:
    """Return the answer to a call.

    Texts are joined by line ends. Without any text, structured content is written as JSON. Other
    content becomes a short text, such as [image].
    """
    parts = [(_text_of(block), block) for block in result.content]
    lines = [_mark_of(block) if text is None else text for text, block in parts]
    if result.structured_content is not None and all(text is None for text, _ in parts):
        lines.insert(0, answer_text(result.structured_content))
    return answer_text("\n".join(lines))


def _text_of(block: types.ContentBlock) -> str | None:
    """Return the text of a block; None if it is something else."""
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        return resource.text if isinstance(resource, types.TextResourceContents) else None
    return None


def _mark_of(block: types.ContentBlock) -> str:
    match block:
        case types.ImageContent():
            return "[image]"
        case types.AudioContent():
            return "[audio]"
        case types.ResourceLink():
            return f"[link to {block.uri}]"
        case types.EmbeddedResource():
            return f"[file {block.resource.uri}]"
    return "[content of another kind]"
