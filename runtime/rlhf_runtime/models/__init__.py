"""Models of roles: sources of weights and tokenizers, and checks before anything starts.

Every source becomes a folder in Hugging Face format. Nothing here imports torch or ray.
"""
