"""Processes that campaigns and tests start, stop, kill and wait for."""
