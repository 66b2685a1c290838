"""Charts of a simulated step, as plain text and as SVG."""
