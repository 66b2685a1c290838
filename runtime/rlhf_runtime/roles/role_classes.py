"""Which class a role has on a rank: by what its model ends in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_api.plan import Head
from rlhf_runtime.roles.context import RoleContext
from rlhf_runtime.roles.language_model import LanguageModel
from rlhf_runtime.roles.scalar_model import ScalarModel

RoleModel = LanguageModel | ScalarModel
"""A role's model on a rank, with a method for each primitive."""

ROLE_CLASSES: Mapping[Head, Callable[[RoleContext], RoleModel]] = {
    Head.LM: LanguageModel,
    Head.SCALAR: ScalarModel,
}
"""The table to extend."""
