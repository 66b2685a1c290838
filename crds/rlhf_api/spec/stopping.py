"""Ends of responses, and their treatment."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rlhf_api.base import Contract


class StopReason(StrEnum):
    """Reason for the end of a response."""

    END_TOKEN = "EndToken"
    """An end token of the model, or one of rollout.endTokens."""
    STOP_TEXT = "StopText"
    """A text of rollout.stop."""
    TOKEN_LIMIT = "TokenLimit"
    """maxResponseTokens."""
    CONTEXT_LIMIT = "ContextLimit"
    """The context of the model."""
    TURN_LIMIT = "TurnLimit"
    """environment.limits.turns: the model called tools in its last turn."""
    TOOL_DEADLINE = "ToolDeadline"
    """A call of a tool took too long."""
    EPISODE_DEADLINE = "EpisodeDeadline"
    """All calls of a conversation took too long."""
    ENVIRONMENT_FAILED = "EnvironmentFailed"
    """The environment raised an error outside of a tool, or its process ended."""

    @property
    def is_complete(self) -> bool:
        """True if the response ended by itself: no limit cut it off."""
        return self in (StopReason.END_TOKEN, StopReason.STOP_TEXT)


CONVERSATION_REASONS = (
    StopReason.TURN_LIMIT,
    StopReason.TOOL_DEADLINE,
    StopReason.EPISODE_DEADLINE,
    StopReason.ENVIRONMENT_FAILED,
)
"""Reasons for the end of conversations alone."""


class StopAction(StrEnum):
    """Treatment of responses that ended for a reason."""

    TRAIN = "Train"
    """They are trained on."""
    MASK = "Mask"
    """Their scores count in baselines and advantages, but none of their tokens in a loss."""
    LEAVE_OUT = "LeaveOut"
    """They count neither in baselines nor in a loss, as if they had no score."""


class OnStop(Contract):
    """Treatment of responses by the reason for their end."""

    # The keys are stop reasons, whose names are values of the contract: TokenLimit, not tokenLimit.
    end_token: Annotated[StopAction, Field(alias="EndToken")] = StopAction.TRAIN
    """Treatment of responses that end with an end token: Train, Mask or LeaveOut."""
    stop_text: Annotated[StopAction, Field(alias="StopText")] = StopAction.TRAIN
    """Treatment of responses that end with a text of stop: Train, Mask or LeaveOut."""
    token_limit: Annotated[StopAction, Field(alias="TokenLimit")] = StopAction.TRAIN
    """Treatment of responses that are cut off at maxResponseTokens: Train, Mask or LeaveOut."""
    context_limit: Annotated[StopAction | None, Field(alias="ContextLimit")] = None
    """Treatment of responses that are cut off where the model's context is full: Train, Mask or
    LeaveOut. Default: a job whose longest prompt and response exceed the context is refused."""

    turn_limit: Annotated[StopAction | None, Field(alias="TurnLimit")] = None
    """Treatment of conversations that call tools in their last turn: Train, Mask or LeaveOut.
    Default: Train."""
    tool_deadline: Annotated[StopAction | None, Field(alias="ToolDeadline")] = None
    """Treatment of conversations whose tool took too long: Train, Mask or LeaveOut. Default:
    LeaveOut."""
    episode_deadline: Annotated[StopAction | None, Field(alias="EpisodeDeadline")] = None
    """Treatment of conversations whose tools took too long together: Train, Mask or LeaveOut.
    Default: LeaveOut."""
    environment_failed: Annotated[StopAction | None, Field(alias="EnvironmentFailed")] = None
    """Treatment of conversations whose environment failed: Train, Mask or LeaveOut. Default:
    LeaveOut."""

    def written_action(self, reason: StopReason) -> StopAction | None:
        """Treatment of conversations that end for a reason of theirs; None: the default."""
        return {
            StopReason.TURN_LIMIT: self.turn_limit,
            StopReason.TOOL_DEADLINE: self.tool_deadline,
            StopReason.EPISODE_DEADLINE: self.episode_deadline,
            StopReason.ENVIRONMENT_FAILED: self.environment_failed,
        }[reason]

    def action(self, reason: StopReason) -> StopAction:
        """Treatment of responses with a stop reason."""
        return {
            StopReason.END_TOKEN: self.end_token,
            StopReason.STOP_TEXT: self.stop_text,
            StopReason.TOKEN_LIMIT: self.token_limit,
            StopReason.CONTEXT_LIMIT: self.context_limit or StopAction.TRAIN,
            **{own: self.written_action(own) or StopAction.TRAIN for own in CONVERSATION_REASONS},
        }[reason]

    def has(self, action: StopAction) -> bool:
        """True if responses with some stop reason are treated so."""
        return any(self.action(reason) is action for reason in StopReason)

    def has_other_than(self, action: StopAction) -> bool:
        """True if responses with some stop reason are treated in another way."""
        return any(self.action(reason) is not action for reason in StopReason)


TRAIN_ON_ALL = OnStop()
"""All responses are trained on."""
