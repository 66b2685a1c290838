"""The class of a role, by the head of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_api.plan import ModelHead
from rlhf_runtime.roles.context import RankRole, RoleContext
from rlhf_runtime.roles.generation import Generation
from rlhf_runtime.roles.language_model import LanguageModelRole
from rlhf_runtime.roles.scalar_model import ScalarModelRole

ROLE_CLASSES: Mapping[ModelHead, Callable[[RoleContext], RankRole]] = {
    ModelHead.LM: LanguageModelRole,
    ModelHead.SCALAR: ScalarModelRole,
}
"""Role classes by head; a new kind of head gets a row here."""


def make_role(context: RoleContext) -> RankRole:
    """Build a role on a rank that holds its model, generates with it, or both. Collective over
    these ranks."""
    head = context.role_plan.head
    assert head is not None, f"{context.role} has no model"
    return Generation(context, None) if context.mesh is None else ROLE_CLASSES[head](context)
