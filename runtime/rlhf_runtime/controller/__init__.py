"""The driver: one loop that runs an algorithm over worker groups. It holds references, never data."""
