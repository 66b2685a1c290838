"""Which class plays which kind of role: the table to extend."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_api.plan import RoleKind
from rlhf_runtime.roles.context import RoleContext
from rlhf_runtime.roles.critic import Critic
from rlhf_runtime.roles.frozen_policy import FrozenPolicy
from rlhf_runtime.roles.policy import Policy

ROLES: Mapping[RoleKind, Callable[[RoleContext], object]] = {
    RoleKind.POLICY: Policy,
    RoleKind.FROZEN_POLICY: FrozenPolicy,
    RoleKind.CRITIC: Critic,
}
