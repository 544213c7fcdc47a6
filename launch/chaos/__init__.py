"""Chaos runs: kill what can be killed under load, and check what clients saw."""
