"""The devices of each role, and how its model is cut over them."""
