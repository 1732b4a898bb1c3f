"""Slow, obvious readers and timelines in plain Python, with which the fast ones are compared."""
