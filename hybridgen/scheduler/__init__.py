"""Admission, batching and recovery as pure state machines."""
