"""Engines: the mock, and the Llama family on the CPU."""
