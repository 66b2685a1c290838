"""The project's version in files besides pyproject.toml: the chart's, and those of image tags."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART_FILE = "charts/rlhf-operator/Chart.yaml"
_CHART = re.compile(r"^((?:version|appVersion): ).*$", re.MULTILINE)
_TAG = re.compile(r"(rlhf-(?:runtime|operator):)\d+\.\d+\.\d+")
TAGGED = (
    "docs/kubernetes/install.md",
    "examples/one-machine/values.yaml",
    "tests/charts/values/namespaces.yaml",
    "tests/e2e/manifests/raycluster.yaml",
    "tests/rlhf_api/manifests/full.yaml",
)
"""Files that name this project's images by their tags."""


def project_version() -> str:
    """Return the version in pyproject.toml, its only source."""
    # Read as text: the installed package may be of an earlier version.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def with_version(file: str) -> str:
    """Return a file's text with the project's version in it."""
    text, version = (ROOT / file).read_text(encoding="utf-8"), project_version()
    # Only these two fields: other versions in the chart are those of Kubernetes and the definition.
    if file == CHART_FILE:
        return _CHART.sub(rf"\g<1>{version}", text)
    return _TAG.sub(rf"\g<1>{version}", text)
