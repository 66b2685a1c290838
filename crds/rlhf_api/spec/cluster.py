"""Image, code and secrets of a job on a cluster."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import Contract, ObjectName, Text
from rlhf_api.cel_literals import text
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.rules import Rule, violation_if

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


class CodeSpec(Alternatives):
    """The user's Python code: exactly one of local, configMap, git. Code in the image needs
    none."""

    alternatives: ClassVar = ("local", "config_map", "git")

    local: Text | None = None
    """Folder put on the Python path, relative to the manifest's; only for `rlhf run`."""
    config_map: ConfigMapCode | None = None
    """Python files in a ConfigMap; only for jobs on a cluster."""
    git: GitCode | None = None
    """A Git repository; only for jobs on a cluster."""


class HubSpec(Contract):
    """Access to the Hugging Face hub."""

    token_secret_name: ObjectName | None = None
    """Secret with key HF_TOKEN, which all pods get."""
    cache_claim_name: ObjectName | None = None
    """Volume claim for the download cache, shared by all pods."""
