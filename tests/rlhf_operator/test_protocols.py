from rlhf_operator.clients.head.protocol import SubmissionState


def test_only_three_states_are_ends() -> None:
    ended = {state.value for state in SubmissionState if state.has_ended}
    assert ended == {"SUCCEEDED", "FAILED", "STOPPED"}
