"""Slow, obvious readers and timelines in plain Python, for comparison with the fast code."""
