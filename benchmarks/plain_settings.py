"""The plain loop's settings: those of example 01, which a test compares."""

from __future__ import annotations

PROMPTS, SAMPLES, MAX_NEW = 64, 8, 8
PROMPT_TOKENS = 7
LEARNING_RATE, WARMUP, CLIP_RANGE = 2e-4, 10, 0.2
