"""Helm with the chart of this repository; it reads nothing of the user's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..cluster.devcluster import output_of

CHART = Path(__file__).resolve().parents[2] / "charts" / "rlhf-operator"
VALUES = Path(__file__).resolve().parent / "values"
CASES = ("smallest", "namespaces", "everything")
"""Files of values that the chart's tests go over."""
RELEASE = "rlhf"
NAMESPACE = "rlhf-system"

Object = dict[str, Any]
"""What a template makes."""


def values_file(case: str) -> Path:
    return VALUES / f"{case}.yaml"


@dataclass(frozen=True)
class Helm:
    """A program, and the folder where it keeps its own files."""

    program: Path
    home: Path
    kubeconfig: Path | None = None

    def __call__(self, *arguments: str) -> str:
        """What it prints; an error with what it says when it fails."""
        own = {f"HELM_{kind}_HOME": str(self.home) for kind in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [str(self.program), *arguments],
            env={**os.environ, **own, "KUBECONFIG": str(self.kubeconfig or os.devnull)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return output_of(done)

    def text(self, case: str, *arguments: str, release: str = RELEASE) -> str:
        """The manifest of a release."""
        return templated(self, release, "--values", str(values_file(case)), *arguments)

    def render(self, case: str, *arguments: str, release: str = RELEASE) -> list[Object]:
        """The objects of a release."""
        text = self.text(case, *arguments, release=release)
        return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


@cache
def templated(helm: Helm, release: str, *arguments: str) -> str:
    """What `helm template` prints; the same words make the same text."""
    return helm("template", release, str(CHART), "--namespace", NAMESPACE, *arguments)


def of_kind(objects: list[Object], kind: str) -> Iterator[Object]:
    return (each for each in objects if each["kind"] == kind)


def the(objects: list[Object], kind: str) -> Object:
    """The only one of its kind."""
    (only,) = of_kind(objects, kind)
    return only
