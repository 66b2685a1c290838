"""Verifiers of a user's own, written into a module that only the verifiers' processes import."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import Sample

VERIFIERS = '''
    import asyncio, multiprocessing, multiprocessing.pool, os, signal, subprocess, sys, threading
    import time

    from rlhf_runtime.rewards import measures

    def length(samples, factor=1.0):
        return [factor * len(sample.response) for sample in samples]

    def by_response(samples):
        """Do what the first response of the batch says."""
        act = samples[0].response
        if act == "raise":
            return deeper(samples)
        if act == "exit":
            sys.exit(3)
        if act == "sleep":
            time.sleep(3600)
        if act == "die":
            os._exit(7)
        if act == "crash":
            print("about to crash")
            os.kill(os.getpid(), signal.SIGSEGV)
        if act == "few":
            return [1.0]
        if act == "text":
            return "1" * len(samples)
        if act == "nothing":
            return None
        return [VALUES.get(sample.response, 1.0) for sample in samples]

    VALUES = {"nan": float("nan"), "infinite": float("-inf"), "huge": 1e300}
    VALUES |= {"word": "2", "none": None}

    def deeper(samples):
        raise ValueError("a verifier's own mistake")

    def each_response(samples):
        """Do what any response of the batch says."""
        for sample in samples:
            by_response([sample])[0]
        return [1.0] * len(samples)

    def solitary(samples):
        if len(samples) > 1:
            raise RuntimeError("one by one, please")
        return by_response(samples)

    def solitary_or_slow(samples):
        if len(samples) > 1:
            time.sleep(3600)
        return [1.0]

    def dies(samples, log):
        with open(log, "a") as file:
            print(os.getpid(), file=file)
        os._exit(7)

    def counting(samples):
        """The number of samples seen so far."""
        scores = []
        for sample in samples:
            SEEN.append(sample)
            scores.append(len(SEEN))
        if any(sample.response == "raise" for sample in samples):
            raise ValueError
        return scores

    SEEN = []

    def pid(samples):
        return [os.getpid()] * len(samples)

    def talkative(samples):
        print("hello from the verifier")
        print("and a complaint", file=sys.stderr)
        os.write(1, b"raw output")
        return [1.0] * len(samples)

    def flooding(samples):
        """Print 100 MB, and die if asked to."""
        for number in range(100_000):
            print(number, "x" * 1000)
        if samples[0].response == "die":
            os._exit(7)
        return [1.0] * len(samples)

    def alarming(samples):
        """Limit its own time, as math-verify does."""
        def ring(number, frame):
            raise TimeoutError
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            time.sleep(3600)
        except TimeoutError:
            return [0.5] * len(samples)

    def forking(samples):
        child = os.fork()
        if child == 0:
            print("from the child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with multiprocessing.get_context("fork").Pool(2) as workers:
            return workers.map(float, [len(sample.response) for sample in samples])

    def forking_on(samples):
        """Fork a child that returns as its parent does."""
        child = os.fork()
        return [2.0 if child else 3.0] * len(samples)

    def in_parts(samples):
        """Whether it ends in a digit, and its length; what a response of some words says."""
        special = {"none": None, "number": 1.0, "unknown": {"length": 1, "size": 2}}
        special |= {"nan": {"length": float("nan")}, "missing": {"digit": 1, "length": None}}
        special |= {"empty": {}}
        return [
            special.get(text, {"digit": float(text[-1:].isdigit()), "length": len(text)})
            for text in (sample.response for sample in samples)
        ]

    def moving(samples):
        os.chdir("/")
        os.environ["HOME"] = "/nowhere"
        return [1.0] * len(samples)

    def threading_(samples):
        """Leave a thread behind that never ends."""
        threading.Thread(target=time.sleep, args=(3600,)).start()
        with multiprocessing.pool.ThreadPool(4) as threads:
            return threads.map(lambda sample: float(len(sample.response)), samples)

    def with_child(samples):
        child = subprocess.Popen(["sleep", "3600"])
        with open(samples[0].record["pids"], "w") as file:
            print(os.getpid(), child.pid, file=file)
        time.sleep(3600)

    def until_there(samples):
        """Touch a file, and end only once another one is there."""
        open(samples[0].record["touch"], "w").close()
        while not os.path.exists(samples[0].response):
            time.sleep(0.01)
        return [1.0] * len(samples)

    def heavy(samples):
        return [float("torch" in sys.modules or "numpy" in sys.modules)] * len(samples)

    def with_torch(samples):
        import torch
        lengths = torch.tensor([float(len(sample.response)) for sample in samples])
        return torch.nn.functional.relu(lengths - 1)

    @measures("accuracy")
    def measuring(samples):
        return [1.0] * len(samples)

    async def later(samples):
        """The number of calls on this event loop, with a lock that belongs to it."""
        lock, calls = CALLS.setdefault("later", (asyncio.Lock(), []))
        async with lock:
            calls.append(asyncio.get_running_loop())
            await asyncio.sleep(0)
        return [float(calls.count(calls[-1]))] * len(samples)

    class Later:
        async def __call__(self, samples):
            CALLS["sum"] = CALLS.get("sum", 0) + 1
            return (number for number in [CALLS["sum"]] * len(samples))

    CALLS = {}
    later_too = Later()

    async def later_raises(samples):
        await asyncio.sleep(0)
        deeper(samples)

    async def one_by_one(samples):
        for sample in samples:
            yield 1.0

    NUMBER = 3
'''


@pytest.fixture
def verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the Python path with the module `my_verifiers`."""
    (tmp_path / "my_verifiers.py").write_text(textwrap.dedent(VERIFIERS))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def reward(verifiers: Path) -> Callable[..., RewardSpec]:
    """Makes the specification of a reward from a function of `my_verifiers`."""

    def make(
        function: str,
        name: str = "reward",
        weight: float = 1.0,
        role: str = "reward",
        **settings: Any,
    ) -> RewardSpec:
        entrypoint = function if ":" in function else f"my_verifiers:{function}"
        content = {"function": {"entrypoint": entrypoint, **settings}}
        return RewardSpec.model_validate({"name": name, "role": role, "weight": weight, **content})

    return make


@pytest.fixture
def samples() -> Callable[..., list[Sample]]:
    """Makes samples from responses."""

    def make(*responses: str, answer: Any = "1") -> list[Sample]:
        return [Sample("p", response, {"answer": answer}, True) for response in responses]

    return make
