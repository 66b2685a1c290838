"""Which class a role has on a rank: by what its model ends in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_api.plan import Head
from rlhf_runtime.roles.context import Role, RoleContext
from rlhf_runtime.roles.language_model import LanguageModel
from rlhf_runtime.roles.scalar_model import ScalarModel

ROLE_CLASSES: Mapping[Head, Callable[[RoleContext], Role]] = {
    Head.LM: LanguageModel,
    Head.SCALAR: ScalarModel,
}
"""The table to extend."""
