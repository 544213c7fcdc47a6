"""Logits row, parameters and history → next token id."""
