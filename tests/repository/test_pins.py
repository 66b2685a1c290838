"""The pinned sets are those of pyproject.toml and overrides.txt."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .tracked_files import ROOT

SETS = {
    "constraints.txt": ("runtime", "cpu", "dev", "wandb", "mlflow", "reasoning-gym"),
    "constraints-gpu.txt": ("runtime", "gpu", "dev", "wandb", "mlflow", "reasoning-gym"),
}


def requirements(file: Path) -> Iterator[Requirement]:
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            yield Requirement(text)


def pinned(file: Path) -> dict[str, set[str]]:
    """Versions by package; several where Python 3.11 and 3.12 need different ones."""
    pins: dict[str, set[str]] = {}
    for requirement in requirements(file):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{file.name}: {requirement} is no exact version"
        pins.setdefault(canonicalize_name(requirement.name), set()).add(specifier.version)
    return pins


@pytest.mark.parametrize("name", SETS)
def test_every_requirement_has_a_pin_that_satisfies_it(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in SETS[name]:
        wanted += project["optional-dependencies"][extra]
    pins = pinned(ROOT / name)
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:
            continue
        versions = pins.get(canonicalize_name(requirement.name), set())
        satisfied = versions and all(requirement.specifier.contains(v) for v in versions)
        assert satisfied, f"{name} has {versions or 'no pin'} for {requirement}: run `make lock`"


@pytest.mark.parametrize("name", SETS)
def test_overrides_are_in_force(name: str) -> None:
    pins = pinned(ROOT / name)
    for requirement in requirements(ROOT / "overrides.txt"):
        assert pins[canonicalize_name(requirement.name)] == {
            specifier.version for specifier in requirement.specifier
        }
