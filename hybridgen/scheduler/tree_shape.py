"""What the coscheduler must know of the tree and of the model it serves."""

from __future__ import annotations

import msgspec

from hybridgen.errors import ConfigError


class TreeShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fixed facts; everything that changes is in WorkerPool and GpuBatch."""

    num_tokenizers: int
    num_detokenizers: int
    vocab_size: int
    max_model_len: int
    """Context length in tokens, prompt and generated together."""
    eos_ids: tuple[int, ...] = ()
    block_size: int = 16
    kept_window: int = 0
    """Positions whose KV is kept (``ModelConfig.kept_window``); 0: all."""
    piece_tokens: int = 64
    """Prompt tokens of one row that are computed at once; only matters with a window."""
    least_shared_tokens: int = 1
    """Prompts share KV blocks where they have so many tokens in common."""
    incarnation: int = 0
    """Of this coscheduler; named in AttachWorker."""

    def __post_init__(self) -> None:
        if min(self.num_tokenizers, self.num_detokenizers) < 1:
            raise ConfigError(
                "a tree needs at least one tokenizer and one detokenizer",
                value=f"{self.num_tokenizers} tokenizers, {self.num_detokenizers} detokenizers",
                limit="≥ 1 each",
                remedy="Raise --num-tokenizers and --num-detokenizers",
            )
