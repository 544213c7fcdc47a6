"""Mechanism: segments, words, rings and channels. Knows bytes and names, and no request."""
