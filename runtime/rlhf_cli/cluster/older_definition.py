"""Fields of stored jobs that another release's definition of RLHFJobs lacks or refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from rlhf_api.api_names import GROUP, KIND, VERSION
from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_cli.cluster.jobs import Job

Schema = Mapping[str, Any]
"""An OpenAPI schema of Kubernetes."""


class LostField(NamedTuple):
    """A field of a job that another definition does not keep."""

    path: str
    problem: str
    """The rest of a sentence about it."""


def read_definition(text: str, source: str) -> Schema:
    """Return the schema of an RLHFJob from YAML documents, one of which defines it.

    Args:
        text: the documents, such as all manifests of a chart.
        source: name of the text in errors.

    Raises:
        ManifestError: it is no YAML, or no document defines RLHFJobs of this API version.
    """
    try:
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError as error:
        problem = Problem((), "not YAML", got=str(error), do="give a definition", file=source)
        raise ManifestError([problem]) from error
    versions = (
        version
        for document in documents
        if _is_definition(document)
        for version in document["spec"]["versions"]
    )
    for version in versions:
        if version["name"] == VERSION:
            schema: Schema = version["schema"]["openAPIV3Schema"]
            return schema
    raise ManifestError(
        [
            Problem(
                (),
                f"no definition of {KIND} in version {VERSION}",
                got=f"{len(documents)} documents without one",
                do="give the definition, or all manifests of a release by `helm template`",
                file=source,
            )
        ]
    )


def _is_definition(document: Any) -> bool:
    """True if a YAML document defines RLHFJobs."""
    if not isinstance(document, Mapping) or document.get("kind") != "CustomResourceDefinition":
        return False
    spec = document["spec"]
    return bool((spec["group"], spec["names"]["kind"]) == (GROUP, KIND))


def lost_fields(schema: Schema, job: Job) -> list[LostField]:
    """Return the fields of a job's spec that a definition does not keep.

    Fields with their default value do not count: the other release has no such choice.

    Args:
        schema: the definition's schema of an RLHFJob.
        job: a stored job.
    """
    try:
        spec = RLHFJobSpec.model_validate(job.spec)
    except ValidationError:  # a job of another release: all that it has counts
        document = job.spec
    else:
        document = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return list(_compare(schema["properties"]["spec"], document, "spec"))


def _compare(schema: Schema, value: Any, path: str) -> Iterator[LostField]:
    if value is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    match value:
        case dict():
            fields = schema.get("properties", {})
            others = schema.get("additionalProperties")
            for name, part in value.items():
                part_schema = fields.get(name, others)
                if part_schema is None:
                    yield LostField(f"{path}.{name}", "that definition has no such field")
                elif isinstance(part_schema, Mapping):
                    yield from _compare(part_schema, part, f"{path}.{name}")
        case list():
            for index, part in enumerate(value):
                yield from _compare(schema.get("items", {}), part, f"{path}[{index}]")
        case _:
            allowed: Sequence[Any] = schema.get("enum", (value,))
            if value not in allowed:
                values = ", ".join(map(str, allowed))
                yield LostField(path, f"got {value}, allowed {values}")
