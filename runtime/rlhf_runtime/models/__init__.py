"""Where a role's weights and tokenizer come from, and whether roles understand each other's tokens.

Everything becomes a folder in Hugging Face format. Nothing here imports torch or ray.
"""
