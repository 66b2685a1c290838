"""`rlhf standby`."""

from __future__ import annotations


def standby() -> None:
    """Keep libraries in memory between runs, until Ctrl-C.

    Workers of `rlhf run` then start without imports. Runs use it by themselves, several at a time,
    and say so. They must have the code, packages, limits and priority that this command was started
    with, and the same values of the variables that libraries read (such as LANG, TZ, HOME, OMP_*,
    CUDA_*, HF_*, VLLM_*); else they say what differs. It takes about 700 MiB of memory and no
    device.

    \b
    Examples:
      rlhf standby                        in one terminal
      rlhf run job.yaml                   in another, as usual
    """
    from rlhf_cli.standby import serve_standby

    serve_standby()
