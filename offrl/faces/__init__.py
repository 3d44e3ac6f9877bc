"""Agents, environments and algorithms for scripts: other ways to use a trainer."""
