"""Servers of the Model Context Protocol (MCP), whose tools conversations call.

A host has one connection to each server. Only these modules import the package `mcp`, and only jobs
with servers import these modules.
"""
