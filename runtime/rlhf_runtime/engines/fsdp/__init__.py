"""Training with FSDP2: any Hugging Face causal language model, its parameters cut by rows."""
