"""Runs a plan: controller, worker groups, engines."""
