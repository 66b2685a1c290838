"""The driver: one loop that runs an algorithm over worker groups, holding references only."""
