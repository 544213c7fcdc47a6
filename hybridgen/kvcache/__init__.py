"""Accounting of KV cache memory."""
