"""Which class plays a role on a rank: by what the role's model ends in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlhf_api.plan import Head
from rlhf_runtime.roles.context import RoleContext
from rlhf_runtime.roles.language_model import LanguageModel
from rlhf_runtime.roles.scalar_model import ScalarModel

Player = LanguageModel | ScalarModel

PLAYERS: Mapping[Head, Callable[[RoleContext], Player]] = {
    Head.LM: LanguageModel,
    Head.SCALAR: ScalarModel,
}
"""The table to extend."""
