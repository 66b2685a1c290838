"""How a job's image, code and secrets reach a cluster."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlhf_api.base import Contract, ObjectName, Text
from rlhf_api.cel import text
from rlhf_api.exclusive import Alternatives
from rlhf_api.rules import Rule, violation_if

URL_WITH_CREDENTIALS = "^https?://[^/]*@"
"""Of Git over HTTP; with SSH the part before the @ is a user's name, and no secret."""


class ObjectReference(Contract):
    """Another object in the same namespace."""

    name: ObjectName
    """Its name."""


PullSecrets = Annotated[tuple[ObjectReference, ...], Field(max_length=16)]
"""As imagePullSecrets of a pod."""


class ImageSpec(Contract):
    """Container image of the head and the workers."""

    runtime: Text
    """Image reference."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When nodes pull it: Always, IfNotPresent or Never."""
    pull_secrets: PullSecrets = ()
    """Secrets with which nodes pull it, such as {name: registry}."""


class ConfigMapCode(Contract):
    """Python files in a ConfigMap."""

    name: ObjectName
    """The ConfigMap; each key is a file."""


class GitCode(Contract):
    """A Git repository."""

    url: Text
    """Address to clone. Credentials do not belong here: who reads the job reads them."""
    revision: Text
    """Branch, tag or commit."""
    sub_path: Text | None = None
    """Folder put on the Python path. Default: the repository's root."""
    secret_name: ObjectName | None = None
    """Secret with credentials: its keys username and password."""

    validations: ClassVar = (
        Rule(
            holds=f"!self.url.matches({text(URL_WITH_CREDENTIALS)})",
            what="credentials in an address, which everybody reads who may read the job",
            do="remove them, and name a Secret in secretName",
            field=".url",
            check=lambda self: violation_if(re.match(URL_WITH_CREDENTIALS, self.url) is not None),
        ),
    )


class CodeSpec(Alternatives):
    """The user's own Python: exactly one of local, configMap, git; code in the image needs none."""

    alternatives: ClassVar = ("local", "config_map", "git")

    local: Text | None = None
    """A folder put on the Python path, relative to the manifest's; only `rlhf run` can read it."""
    config_map: ConfigMapCode | None = None
    """Python files in a ConfigMap; only a cluster can read them."""
    git: GitCode | None = None
    """A Git repository; only a cluster reads it."""


class HubSpec(Contract):
    """Access to the Hugging Face hub."""

    token_secret_name: ObjectName | None = None
    """Secret whose key HF_TOKEN is given to all pods."""
    cache_claim_name: ObjectName | None = None
    """Volume claim shared by all pods as download cache."""
