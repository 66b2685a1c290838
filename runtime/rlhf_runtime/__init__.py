"""How a plan runs: controller, worker groups, engines."""
