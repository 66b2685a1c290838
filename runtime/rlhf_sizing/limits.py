"""Sizes of batches and buffers that plans count with and the runtime keeps to."""

from __future__ import annotations

# Tokens that the generation engine runs through the model at once; more only for a longer sequence.
BATCHED_TOKENS = 8192

# Longest sequence with several responses: its mask has the square of it, in bytes.
MAX_SHARED_TOKENS = 8192

# Weights that travel between ranks at once: 64 M, 128 MiB of bfloat16 in either direction.
TRANSFER_BUCKET_ELEMENTS = 1 << 26
