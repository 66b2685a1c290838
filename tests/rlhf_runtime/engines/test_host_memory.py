"""Free memory is kept for the next pass, and given back when asked: page faults tell."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, resource
from rlhf_runtime.engines.host_memory import give_free_pages_back, keep_free_pages

def faults_of_a_pass():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    activations = [bytearray(8 << 20) for _ in range(8)]
    del activations
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = [faults_of_a_pass()]
keep_free_pages()
faults_of_a_pass()
found.append(faults_of_a_pass())
give_free_pages_back()
found.append(faults_of_a_pass())
print(json.dumps(found))
"""
PAGES = (64 << 20) // 4096


def test_a_pass_finds_the_memory_of_the_one_before() -> None:
    """In a process of its own: what is set is the whole process's."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    before, kept, given_back = json.loads(ended.stdout)
    assert kept < PAGES / 100
    assert min(before, given_back) > 10 * max(1, kept)
