"""A problem in a manifest: position, fault, and how to fix it.

Every check of a manifest produces problems: the YAML reader, the models and the rules across
fields. `ManifestError` carries all problems of one file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Wire names and list indices from the root, such as ("spec", "rewards", 0, "weight").
FieldPath = tuple[str | int, ...]

_PLAIN_SEGMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")


def path_text(path: FieldPath) -> str:
    """Format a path as Kubernetes does: spec.rewards[0].weight, metadata.labels[a.b/team]."""
    text = ""
    for segment in path:
        if isinstance(segment, str) and _PLAIN_SEGMENT.match(segment):
            text += f".{segment}" if text else segment
        else:
            text += f"[{segment}]"
    return text


@dataclass(frozen=True)
class Problem:
    """One fault in a manifest."""

    location: FieldPath
    """The field in question; empty for the complete document or file."""
    what: str
    """The fault, or a complete sentence that needs no other part."""
    got: str = ""
    """The current value, shortened."""
    allowed: str = ""
    """The allowed values."""
    do: str = ""
    """The fix."""
    file: str = ""
    """The file's name, <stdin> or --set; empty for documents that were not read from text."""
    line: int | None = None
    """Line in the file, from 1; None if the problem has none."""
    column: int | None = None
    """Column in the line, from 1; None if the problem has none."""

    @property
    def path(self) -> str:
        """The field in question in wire names, such as spec.models.actor.source."""
        return path_text(self.location)

    @property
    def message(self) -> str:
        """The message in one sentence: fault, got, allowed, fix."""
        facts = ", ".join(
            f"{word} {text}"
            for word, text in (("got", self.got), ("allowed", self.allowed))
            if text
        )
        sentence = f"{self.what}: {facts}" if facts else self.what
        return f"{sentence}; {self.do}" if self.do else sentence

    @property
    def position(self) -> str:
        """File, line and column as compilers write them: job.yaml:7:5."""
        parts = (self.file, self.line, self.column if self.line is not None else None)
        return ":".join(str(part) for part in parts if part not in ("", None))

    def __str__(self) -> str:
        return ": ".join(part for part in (self.position, self.path, self.message) if part)
