"""The family of strategies that a search compares.

placements.py   the devices of each role
completions.py  the strategies that complete an open one: cuts, compute settings, sizes of engines
"""
