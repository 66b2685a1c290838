"""The mark of models that the CustomResourceDefinition has as objects of any content."""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict

# Kubernetes' marker for an object of any content.
ANY_CONTENT: Final = "x-kubernetes-preserve-unknown-fields"

# The definition would be too large for `kubectl apply` with a typed copy for the head and each
# pool. So the operator and the command check these models.
UNTYPED_IN_DEFINITION = ConfigDict(json_schema_extra={ANY_CONTENT: True})
