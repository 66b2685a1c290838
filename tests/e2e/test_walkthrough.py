"""What the README's section on Kubernetes tells people to type works: from nothing to a model."""

from __future__ import annotations

import re

import pytest

from .conftest import FETCHED
from .walkthrough import Walkthrough

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]
WALK_SECONDS = 2000.0


def test_what_the_readme_says_of_kubernetes_works(walkthrough: Walkthrough) -> None:
    walkthrough.wait(WALK_SECONDS)
    row = re.search(r"^sort-grpo +Succeeded .*$", walkthrough.output, re.MULTILINE)
    assert row is not None, walkthrough.output
    print(f"\n{row[0]}")
    assert (FETCHED / "model" / "model.safetensors").exists()
