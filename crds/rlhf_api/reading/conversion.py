"""Manifests rewritten without deprecated fields. Comments, order and other objects are kept."""

from __future__ import annotations

from rlhf_api.deprecations import DEPRECATIONS
from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.reading.manifest import load_mixed
from rlhf_api.reading.yaml_edits import CannotEdit, rename_field


def convert_text(text: str, source_name: str) -> tuple[str, list[str]]:
    """Replace deprecated fields in the jobs of a text.

    Args:
        text: one or several documents; those of other kinds are left as they are.
        source_name: the file's name in messages.

    Returns:
        The new text, and a sentence for each change.

    Raises:
        ManifestError: the text cannot be read or edited, or has problems.
    """
    changes: list[str] = []
    for number, document, job in load_mixed(text, source_name, lambda value: value):
        for deprecation in DEPRECATIONS:
            if deprecation.field not in document.value["spec"]:
                continue
            path = ("spec", deprecation.field)
            try:
                text = rename_field(text, number, path, deprecation.instead)
            except CannotEdit as error:
                do = f"write spec.{deprecation.instead} by hand"
                raise ManifestError([Problem((), str(error), do=do, file=source_name)]) from error
            changes.append(f"{job.name}: spec.{deprecation.field} is spec.{deprecation.instead}")
    return text, changes
