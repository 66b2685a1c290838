"""Values that the user's code returns: texts for the model, rewards, snapshots.

Standard library only.
"""

from __future__ import annotations

import base64
import json
import math
import reprlib
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

# Limit of a traceback, whose end is kept.
MAX_TRACEBACK_CHARACTERS = 6000
# Longest note about what was left out of an answer.
_NOTE_CHARACTERS = 48
# A conversation's state is written after every turn.
MAX_SNAPSHOT_BYTES = 1 << 20
FLOAT32_MAX = 3.4028234663852886e38
_OWN_PACKAGES = ("asyncio", "importlib", "_frozen_importlib", "rlhf_runtime.environments")


class BadValue(Exception):
    """A value that the user's code must not return; the text says what is allowed."""


def answer_text(value: Any) -> str:
    """Return a tool's value as a text.

    Raises:
        BadValue: it is neither a text nor a JSON value.
    """
    if isinstance(value, str):
        return _clean(value)
    try:
        return _clean(json.dumps(value, ensure_ascii=False, default=_number))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"the tool returned no JSON value: {error}") from None


def _number(value: Any) -> Any:
    """Convert a number of NumPy, or an array or tensor of one number.

    Raises:
        BadValue: it is something else.
    """
    try:
        return value.item()
    except Exception:  # methods of other libraries may raise anything
        raise BadValue(
            f"the tool returned a value of type {type(value).__name__}, allowed a text or a JSON "
            "value"
        ) from None


def error_text(problem: str) -> str:
    """Return the answer to a call that failed."""
    return f"error: {problem}"


def raised_text(error: BaseException) -> str:
    """Return the answer to a call that raised."""
    lines = traceback.format_exception_only(error)
    return error_text(_clean("".join(lines).strip()))


def shorten(text: str, limit: int) -> str:
    """Leave out the middle of a text that is longer than a limit of some hundred characters.

    Both ends stay, because a later limit in tokens may cut either side.
    """
    if len(text) <= limit:
        return text
    kept = max(limit - _NOTE_CHARACTERS, 2)
    head, tail = kept - kept // 2, kept // 2
    cut = f"\n[{len(text) - head - tail} characters left out]\n"
    return text[:head] + cut + text[len(text) - tail :]


def reward_value(value: Any, method: str) -> float | dict[str, float] | None:
    """Return a conversation's reward.

    Raises:
        BadValue: it is neither a finite number, nor a dict of such numbers, nor None.
    """
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise _bad_reward(value, method)
        return {str(name): _finite(part, method, value) for name, part in value.items()}
    return None if value is None else _finite(value, method, value)


def turn_reward_value(value: Any) -> float | None:
    """Return the reward of a turn.

    Raises:
        BadValue: it is neither a finite number nor None.
    """
    return None if value is None else _finite(value, "turn_reward", value)


def _finite(value: Any, method: str, returned: Any) -> float:
    """Convert a number, or an array or tensor of one number.

    returned: the complete value, for messages.
    """
    try:
        item = getattr(value, "item", None)
        number = item() if callable(item) else value
        if isinstance(number, str | bytes):
            raise TypeError
        converted = float(number)
    except Exception:  # methods of other libraries may raise anything
        raise _bad_reward(returned, method) from None
    if not math.isfinite(converted) or abs(converted) > FLOAT32_MAX:
        raise _bad_reward(returned, method)
    return converted


def _bad_reward(value: Any, method: str) -> BadValue:
    allowed = "a finite number or None"
    if method != "turn_reward":
        allowed = "a finite number, a dict of finite numbers by name, or None"
    return BadValue(f"{method} returned {_shown(value)}, allowed {allowed}; correct it")


def observation_text(value: Any, limit: int) -> str | None:
    """Return the observation that `reset` gives.

    Raises:
        BadValue: it is neither a text nor None.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadValue(f"reset returned {_shown(value)}, allowed a text or None; correct it")
    return shorten(_clean(value), limit)


def snapshot_value(value: Any) -> Any:
    """Return a snapshot as a JSON value, from which `restored_snapshot` makes it again.

    Raises:
        BadValue: it is neither bytes nor a JSON value, or too large.
    """
    if isinstance(value, bytes):
        text = json.dumps({"bytes": base64.b64encode(value).decode()})
    else:
        try:
            text = json.dumps({"value": value}, allow_nan=False)
            is_same = json.loads(text)["value"] == value
        except (TypeError, ValueError, RecursionError):
            is_same = False
        if not is_same:
            raise BadValue(
                f"snapshot returned {_shown(value)}, allowed bytes or a JSON value, which has "
                "texts as keys and lists instead of tuples; return such a value"
            )
    if len(text) > MAX_SNAPSHOT_BYTES:
        raise BadValue(
            f"snapshot returned a value of {len(text)} bytes, allowed {MAX_SNAPSHOT_BYTES}, "
            "because it is kept after every turn; return less, or remove snapshot and restore, so "
            "that calls are made again instead"
        )
    return json.loads(text)


def restored_snapshot(value: Any) -> Any:
    """Return what `snapshot` had returned; the inverse of `snapshot_value`."""
    return base64.b64decode(value["bytes"]) if "bytes" in value else value["value"]


def user_traceback(error: BaseException) -> str:
    """Format a traceback without the frames before the user's own."""
    if isinstance(error, BadValue):
        return str(error)
    frames: TracebackType | None = error.__traceback__
    while frames is not None and _is_own(frames):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames)
    return _clean("".join(lines).rstrip()[-MAX_TRACEBACK_CHARACTERS:])


def _is_own(frames: TracebackType) -> bool:
    name = str(frames.tb_frame.f_globals.get("__name__", ""))
    return any(name == own or name.startswith(f"{own}.") for own in _OWN_PACKAGES)


def _clean(text: str) -> str:
    """Replace what cannot be written as UTF-8."""
    return text.encode(errors="replace").decode()


def _shown(value: Any) -> str:
    try:
        return _clean(reprlib.repr(value)[:200])
    except Exception:  # the user's __repr__ may raise anything
        return f"a value of type {type(value).__name__}"
