"""The base of every model in the contract, and the bounded types they are made of.

Wire names are camelCase, Python names snake_case. Every string, list and map is bounded because the
same models become the Kubernetes schema, whose validation cost is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from rlhf_api.rules import BrokenRules, Rule


class Contract(BaseModel):
    """A frozen model that refuses unknown keys and documents its fields by their docstrings."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
    # An object with default {} has none: the API server checks that default before it fills in the
    # defaults of the object's fields.
    validations: ClassVar[tuple[Rule, ...]] = ()
    """Rules between fields of this model."""
    reserved: ClassVar[Mapping[str, str]] = {}
    """Reasons why fields that Kubernetes has under these names cannot be set here."""

    @classmethod
    def all_validations(cls) -> tuple[Rule, ...]:
        """All rules of the model: `validations`, and those that its kind adds."""
        return cls.validations

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        problems = [problem for rule in self.all_validations() for problem in rule.problems(self)]
        if problems:
            raise BrokenRules(problems)
        return self


def models_by_name(base: type[Contract] = Contract) -> dict[str, type[Contract]]:
    """All models below a model, by class name."""
    models: dict[str, type[Contract]] = {}
    for model in base.__subclasses__():
        models |= {model.__name__: model, **models_by_name(model)}
    return models


NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
IDENTIFIER_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
ENTRYPOINT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
CALL_PATTERN = r"^[A-Za-z0-9_.#/-]+$"
URI_PATTERN = r"^[a-z][a-z0-9+.-]*://.+"
_PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
# A name, or an address of IPv6 in brackets.
_HOST = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
HTTP_URL_PATTERN = rf"^https?://{_HOST}(:{_PORT})?([/?][!-~]*)?$"
HEADER_PATTERN = r"^[A-Za-z0-9_-]+$"
HEADER_VALUE_PATTERN = "^[ -~]*$"
_PART = r"([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+|\.)"
FOLDER_PATTERN = rf"^{_PART}(/+{_PART})*/*$"
# Kubernetes' names of labels, annotations, taints and resources: a domain and a slash before the
# name, or the name alone.
_LABEL = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY_PATTERN = rf"^([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL}$"
LABEL_VALUE_PATTERN = rf"^({_LABEL})?$"
ABSOLUTE_PATTERN = rf"^(/+{_PART})+/*$|^/+$"
MEDIUM_PATTERN = r"^(Memory|HugePages(-[0-9]+[KMG]i)?)?$"
PREFIX_PATTERN = r"^([A-Za-z_][A-Za-z0-9_]*)?$"
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?$"
# A requirement of a package after PEP 508, without address and pip's options.
_REQUIREMENT = "[-A-Za-z0-9._,<>=!~*+;()'\"\\[\\]]"
REQUIREMENT_PATTERN = rf"^[A-Za-z0-9]({_REQUIREMENT}| +{_REQUIREMENT.replace('[-', '[', 1)})*$"

# Meaning of each pattern, for people. Every pattern of a manifest is listed.
PATTERN_WORDS = {
    NAME_PATTERN: "lower-case letters, digits and dashes, with a letter or digit at both ends",
    JOB_NAME_PATTERN: "lower-case letters, digits and dashes, with a letter first and a letter or "
    "digit last",
    OBJECT_NAME_PATTERN: "lower-case letters, digits, dashes and dots, with a letter or digit "
    "at both ends",
    IDENTIFIER_PATTERN: "letters, digits and underscores, not a digit first",
    KEY_PATTERN: "letters, digits, dashes, dots and underscores",
    ENTRYPOINT_PATTERN: "package.module:name",
    CALL_PATTERN: "letters, digits, underscores, dots, dashes, # and /",
    URI_PATTERN: "an address such as s3://bucket/prefix",
    HTTP_URL_PATTERN: "an address such as http://host:8000/score, without credentials",
    HEADER_PATTERN: "letters, digits, dashes and underscores",
    HEADER_VALUE_PATTERN: "printable ASCII characters",
    FOLDER_PATTERN: "a path such as team-a/sort, without a slash first and without ..",
    LABEL_KEY_PATTERN: "letters, digits, dashes, dots and underscores, at most 63 of them, after a "
    "domain and a slash if it has one, such as example.com/rack",
    LABEL_VALUE_PATTERN: "letters, digits, dashes, dots and underscores, with a letter or digit at "
    "both ends",
    ABSOLUTE_PATTERN: "a path such as /data, with a slash first and without ..",
    MEDIUM_PATTERN: "nothing, Memory, HugePages or HugePages-SIZE",
    PREFIX_PATTERN: "letters, digits and underscores, not a digit first, or nothing",
    QUANTITY_PATTERN: "a quantity such as 64Gi, 500m or 8",
    REQUIREMENT_PATTERN: "the name of a package and its versions, such as rapidfuzz>=3,<4, without "
    "an address and pip's options",
}

# A DNS-1123 label: lower-case letters, digits and dashes, 63 characters at most.
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)]

# A DNS-1035 label of at most 40 characters.
# A job's RayCluster is named after it with a suffix, and KubeRay allows 53 characters that begin
# with a letter.
JobName = Annotated[str, Field(min_length=1, max_length=40, pattern=JOB_NAME_PATTERN)]

# The name of another Kubernetes object (a DNS-1123 subdomain, which may have dots).
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]

# A name that is also a Python identifier: a role or a metric.
Identifier = Annotated[str, Field(min_length=1, max_length=63, pattern=IDENTIFIER_PATTERN)]

# A short text: a path, an address, a field name.
Text = Annotated[str, Field(min_length=1, max_length=1024)]

# A Python object as `package.module:name`.
Entrypoint = Annotated[str, Field(min_length=3, max_length=512, pattern=ENTRYPOINT_PATTERN)]

# A package and its versions, as pip names them.
PackageRequirement = Annotated[
    str, Field(min_length=1, max_length=512, pattern=REQUIREMENT_PATTERN)
]

# Annotations of pods, or a node selector.
LabelMap = Annotated[dict[Text, Annotated[str, Field(max_length=1024)]], Field(max_length=64)]

# The name of a label, an annotation or a taint.
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]

# The value of a label.
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]

# Labels of pods, or those that a node must have.
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]

# Annotations of pods.
Annotations = Annotated[
    dict[LabelKey, Annotated[str, Field(max_length=16 * 1024)]], Field(max_length=64)
]

# A path in a pod.
AbsolutePath = Annotated[str, Field(min_length=1, max_length=1024, pattern=ABSOLUTE_PATTERN)]

# Labels of a Kubernetes object, up to the API server's own limits.
# Other tools put labels and annotations on the object, too.
ObjectLabels = Annotated[dict[Text, Annotated[str, Field(max_length=63)]], Field(max_length=10_000)]

# Annotations of a Kubernetes object.
# `kubectl apply` keeps the complete manifest in one annotation.
ObjectAnnotations = Annotated[
    dict[Text, Annotated[str, Field(max_length=256 * 1024)]], Field(max_length=10_000)
]

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegativeCount = Annotated[int, Field(ge=0, le=2**31 - 1)]
