"""Datasets of the package reasoning_gym, as data and verifiers make them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

PACKAGE = "reasoning-gym"
VERIFIER = "rlhf_runtime.rewards.reasoning_gym:score"
"""Entrypoint of the verifier that scores by a dataset's own `score_answer`."""
DATASET_FIELD = "metadata.source_dataset"
"""Field of a row that names the generator that made it."""


class GeneratorUnusable(Exception):
    """The package or a generator of it cannot be used; the text says what, got, allowed, do."""


def is_installed() -> bool:
    """True if this environment has the package; importing it would take seconds."""
    return find_spec("reasoning_gym") is not None


def import_package() -> Any:
    """Import the package, which takes some seconds.

    Raises:
        GeneratorUnusable: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            # A package that it needs compiles with warnings.
            warnings.simplefilter("ignore")
            import reasoning_gym
    except ModuleNotFoundError as error:
        raise GeneratorUnusable(
            f"the package {PACKAGE} cannot be imported: got {error}, allowed an environment with "
            f"it; install it, such as by pip install rlhf-operator[{PACKAGE}], or on a cluster use "
            "an image with it"
        ) from error
    return reasoning_gym


def make_dataset(name: str, parameters: Mapping[str, Any], **rows: int) -> Any:
    """Make a dataset, whose items are made when they are taken.

    Args:
        name: of the generator.
        parameters: its settings.
        rows: its seed and size. Default: the package's; an answer's score does not depend on them.

    Raises:
        GeneratorUnusable: no such generator, it refuses its parameters, or the package is not
            installed.
    """
    package = import_package()
    generators = package.factory.DATASETS
    if name not in generators:
        raise GeneratorUnusable(
            f"no dataset of {PACKAGE} {version(PACKAGE)}: got {name}, "
            f"{_allowed(name, generators)}; correct the name"
        )
    fields = [field.name for field in dataclasses.fields(generators[name][1])]
    for parameter in parameters:
        if parameter not in fields:
            others = [field for field in fields if field not in ("seed", "size")]
            raise GeneratorUnusable(
                f"{name} has no such parameter: got {parameter}, {_allowed(parameter, others)}; "
                "correct the name"
            )
    try:
        return package.create_dataset(name, **parameters, **rows)
    # Generators check their settings by assertions, and not their types.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise GeneratorUnusable(
            f"{name} refuses its parameters: got {dict(parameters)}: {reason}; correct them"
        ) from error


def _allowed(name: str, names: Iterable[str]) -> str:
    """Name the nearest allowed names; all of a few."""
    known = sorted(names)
    near = get_close_matches(name, known, n=3) or [one for one in known if name in one][:3]
    if len(known) <= 20 or not near:
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        return f"allowed {', '.join(known) or 'none'}{meant}"
    return f"allowed names such as {', '.join(near)} ({len(known)} in all)"
