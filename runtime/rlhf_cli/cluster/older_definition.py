"""Fields of stored jobs that another release's definition of RLHFJobs lacks or refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from rlhf_api.api_names import GROUP, KIND, VERSION
from rlhf_api.errors import ManifestError
from rlhf_api.problems import FieldPath, Problem, path_text
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_cli.cluster.jobs import Job

Schema = Mapping[str, Any]
"""An OpenAPI schema of Kubernetes."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


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
        ManifestError: it is no YAML, or no document defines the spec of RLHFJobs of this
            API version.
    """
    try:
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError as error:
        problem = Problem((), "not YAML", got=str(error), do="give a definition", file=source)
        raise ManifestError([problem]) from error
    for document in documents:
        for schema in _schemas_in(document):
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


def _schemas_in(document: Any) -> Iterator[Schema]:
    """Yield the schemas of RLHFJobs of this API version that a YAML document has."""
    match document:
        case {"kind": "CustomResourceDefinition", "spec": {"versions": [*versions], **spec}}:
            is_of_jobs = spec.get("group") == GROUP and _part(spec, "names", "kind") == KIND
            for version in versions if is_of_jobs else ():
                schema = _part(version, "schema", "openAPIV3Schema")
                # Without a schema of the spec nothing can be compared.
                has_spec = isinstance(_part(schema, "properties", "spec"), Mapping)
                if _part(version, "name") == VERSION and has_spec:
                    yield schema
        case {"kind": str(kind), "items": [*items]} if kind.endswith("List"):
            for item in items:
                yield from _schemas_in(item)


def _part(value: Any, *names: str) -> Any:
    """Return a part of nested mappings. None: there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


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
    return list(_compare(schema["properties"]["spec"], document, ("spec",)))


def _is_of(value: Any, kind: type | tuple[type, ...]) -> bool:
    # A Python bool is an int, too.
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _compare(schema: Schema, value: Any, path: FieldPath) -> Iterator[LostField]:
    if value is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    kind = _TYPES.get(schema.get("type", ""))
    if kind is not None and not _is_of(value, kind):
        yield LostField(path_text(path), f"got {value}, allowed a value of type {schema['type']}")
        return
    match value:
        case dict():
            fields = schema.get("properties", {})
            others = schema.get("additionalProperties")
            for name, part in value.items():
                part_schema = fields.get(name, others)
                if part_schema is None:
                    where = path_text((*path, name))
                    yield LostField(where, "that definition has no such field")
                elif isinstance(part_schema, Mapping):
                    yield from _compare(part_schema, part, (*path, name))
        case list():
            for index, part in enumerate(value):
                yield from _compare(schema.get("items", {}), part, (*path, index))
        case _:
            allowed: Sequence[Any] = schema.get("enum", (value,))
            if value not in allowed:
                values = ", ".join(map(str, allowed))
                yield LostField(path_text(path), f"got {value}, allowed {values}")
