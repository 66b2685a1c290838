"""One conversation, turn by turn."""

from __future__ import annotations

import numpy as np

from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.conversations.conversation import Conversation
from rlhf_runtime.engines.generation import SequenceEnded
from rlhf_runtime.engines.kept_tokens import SequenceSets

from .scripted import ScriptedDialogue


def test_a_token_of_an_answer_is_alone_in_its_set() -> None:
    turns = [[(3, [1, 3]), (5, [5])], [(2, [0, 2, 9])]]
    answers = [[7, 8], [4]]
    conversation = Conversation(
        0, ScriptedDialogue(), "{}", np.array([1], dtype=np.int32), 60, records_kept_tokens=True
    )
    whole = SequenceSets(64)
    for turn, answer in zip(turns, answers, strict=True):
        sets = SequenceSets(64)
        for token, kept in turn:
            sets.add(np.array(kept), token)
            whole.add(np.array(kept), token)
        tokens = np.array([token for token, _ in turn], dtype=np.int32)
        log_probs = np.zeros(len(tokens), dtype=np.float32)
        end = SequenceEnded(0, tokens, log_probs, StopReason.END_TOKEN, sets.encode())
        conversation.add_turn(end, "")
        conversation.add_answer(np.array(answer, dtype=np.int32))
        for token in answer:
            whole.add(np.array([token]), token)
    assert conversation.tokens.tolist() == [3, 5, 7, 8, 2, 4]
    assert conversation.mask.tolist() == [1, 1, 0, 0, 1, 0]
    assert conversation.kept_tokens.tolist() == whole.encode().tolist()
