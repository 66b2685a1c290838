"""Mistakes in `code.requirements` that the manifest alone shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhf_api.rules import Violation


def requirement_violations(requirements: Sequence[str]) -> Iterator[Violation]:
    """Yield requirements that are not written after PEP 508, and names that stand twice.

    Args:
        requirements: of `code.requirements`.
    """
    if not requirements:
        return
    # Only jobs with requirements need the package.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    first: dict[tuple[str, str], str] = {}
    for index, text in enumerate(requirements):
        at = ("requirements", index)
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            # The first line is the fault; the others point at it by their columns.
            yield Violation(f"{text} ({str(error).splitlines()[0]})", at)
            continue
        # A package may stand twice for different environments.
        key = canonicalize_name(requirement.name), str(requirement.marker)
        if key in first:
            yield Violation(
                f"{first[key]} and {text}",
                at,
                do="write all its versions into one of them, and remove the other",
                what="one package stands twice",
            )
        first.setdefault(key, text)
