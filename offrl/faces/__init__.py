"""Agents, environments and algorithms for scripts, as other interfaces to a trainer."""
