"""How many KV blocks a configuration asks for."""

from __future__ import annotations

from hybridgen.config import Config
from hybridgen.kvcache.kv_window import kv_window

#: A KV cache that was not sized holds this many tokens for each sequence of a full batch.
DEFAULT_TOKENS_PER_SEQ = 1024


def planned_blocks(
    config: Config, *, max_model_len: int, bytes_per_token: int, kept_window: int = 0
) -> int:
    """Blocks asked for: as a number, as bytes, or else enough for usual loads.

    Args:
        config: a number counts before bytes; with neither, the cache holds
            ``DEFAULT_TOKENS_PER_SEQ`` for each of max_num_seqs sequences, and in any case one
            whole context, or of either what a window keeps.
        max_model_len: context length in tokens.
        bytes_per_token: keys and values of one token over all layers.
        kept_window: ``ModelConfig.kept_window``.
    """
    device = config.device
    if device.num_kv_blocks:
        return device.num_kv_blocks
    if device.kv_cache_memory:
        return device.kv_cache_memory // (device.block_size * bytes_per_token)
    window = kv_window(config, kept_window)
    usual = config.scheduler.max_num_seqs * window.row_blocks(DEFAULT_TOKENS_PER_SEQ)
    return max(usual, window.row_blocks(max_model_len))
