"""Overlap of generation and inference: inference that begins before the last response has ended.

    fusable_calls.py  calls and engines that may take part
    choice.py         the best overlap, or the requested one

Seconds and tokens; pure.
"""
