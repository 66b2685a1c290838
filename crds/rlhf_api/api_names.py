"""Names of the RLHFJob in Kubernetes' API. It imports nothing, so that commands start fast."""

from __future__ import annotations

from typing import Final

GROUP: Final = "rlhf-operator.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "RLHFJob"
PLURAL: Final = "rlhfjobs"
