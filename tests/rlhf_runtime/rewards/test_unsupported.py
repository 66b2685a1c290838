import pytest

from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.unsupported import score

CASES = [("402991=", "012499", 0.0), ("402991=", "0", 0.0), ("12=", "1122", 0.5), ("1=", "", 0.0)]


@pytest.mark.parametrize(("prompt", "response", "cost"), CASES)
def test_characters_that_the_prompt_has_less_often_cost(
    prompt: str, response: str, cost: float
) -> None:
    assert score([Sample(prompt, response, {}, True)]) == [cost]
