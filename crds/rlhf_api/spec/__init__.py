"""The manifest: one model for each section, and the rules between them."""
