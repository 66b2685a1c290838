"""Image, code and secrets of a job on a cluster."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import Contract, ObjectName, PackageRequirement, Text
from rlhf_api.cel_literals import text
from rlhf_api.exclusive_fields import mutually_exclusive
from rlhf_api.rules import Rule, violation_if
from rlhf_api.spec.requirements import requirement_violations

# Git addresses over HTTP with credentials. Over SSH the part before the @ is a user's name, not a
# secret.
URL_WITH_CREDENTIALS = "^https?://[^/]*@"


class ObjectReference(Contract):
    """Another object in the same namespace."""

    name: ObjectName
    """Its name."""


# Like imagePullSecrets of a pod.
PullSecrets = Annotated[tuple[ObjectReference, ...], Field(max_length=16)]


class ImageSpec(Contract):
    """Container image of the head and the workers."""

    runtime: Text
    """Image reference."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Pull policy of nodes: Always, IfNotPresent or Never."""
    pull_secrets: PullSecrets = ()
    """Secrets for pulling the image, such as {name: registry}."""


class ConfigMapCode(Contract):
    """Python files in a ConfigMap."""

    name: ObjectName
    """The ConfigMap; each key is a file."""


class GitCode(Contract):
    """A Git repository."""

    url: Text
    """Address to clone, without credentials: everyone who can read the job can read it."""
    revision: Text
    """Branch, tag or commit."""
    sub_path: Text | None = None
    """Folder put on the Python path. Default: the repository's root."""
    secret_name: ObjectName | None = None
    """Secret with credentials in its keys username and password."""

    validations: ClassVar = (
        Rule(
            holds=f"!self.url.matches({text(URL_WITH_CREDENTIALS)})",
            what="credentials in an address, which everyone can read who can read the job",
            do="remove them, and name a Secret in secretName",
            field=".url",
            check=lambda self: violation_if(re.match(URL_WITH_CREDENTIALS, self.url) is not None),
        ),
    )


_SOURCES = ("local", "config_map", "git")


class CodeSpec(Contract):
    """The user's Python code: at most one of local, configMap, git, and the packages that it needs.
    Code and packages in the image need none."""

    local: Text | None = None
    """Folder put on the Python path, relative to the manifest's; only for `rlhf run`."""
    config_map: ConfigMapCode | None = None
    """Python files in a ConfigMap; only for jobs on a cluster."""
    git: GitCode | None = None
    """A Git repository; only for jobs on a cluster."""
    requirements: Annotated[tuple[PackageRequirement, ...], Field(max_length=64)] = ()
    """Packages for the code, as pip names them, such as rapidfuzz>=3,<4. What the environment lacks
    is installed once, before the job starts, and stays the same when it resumes. The index is pip's
    own: on a cluster PIP_INDEX_URL, PIP_FIND_LINKS or PIP_NO_INDEX in env."""

    validations: ClassVar = (
        mutually_exclusive(_SOURCES),
        Rule(
            holds="has(self.local) || has(self.configMap) || has(self.git) || "
            "has(self.requirements) && self.requirements.size() > 0",
            what="one of local, configMap, git, requirements is needed",
            do="set one of them, or remove code",
            check=lambda self: violation_if(
                not self.requirements and all(getattr(self, name) is None for name in _SOURCES)
            ),
        ),
        Rule(
            # CEL knows neither markers nor the equal spellings of a name.
            holds="",
            what="not a requirement of a package",
            do="write it as pip does: NAME, NAME==VERSION or NAME>=VERSION,<VERSION",
            check=lambda self: requirement_violations(self.requirements),
        ),
    )


class HubSpec(Contract):
    """Access to the Hugging Face hub."""

    token_secret_name: ObjectName | None = None
    """Secret with key HF_TOKEN, which all pods get."""
    cache_claim_name: ObjectName | None = None
    """Volume claim for the download cache, shared by all pods."""
