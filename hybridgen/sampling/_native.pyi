from typing import Self, TypeAlias, final

from typing_extensions import Buffer

Report: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int]

def sample_row(
    logits: Buffer,
    sampling: Buffer,
    history: Buffer,
    prompt_len: int,
    variant: int = 0,
    mask: Buffer | None = None,
    /,
) -> tuple[int, int, float, list[tuple[int, float]]]: ...
def sample_step(
    logits: Buffer,
    sampled: Buffer,
    slots: Buffer,
    tokens: Buffer,
    logprobs: Buffer,
    step: int,
    lane: int,
    is_rest: bool = False,
    variant: int = 0,
    /,
) -> tuple[int, int, int, int, int, int, int, int]: ...

@final
class Lane:
    def __new__(
        cls,
        logits: Buffer,
        sampled: Buffer,
        slots: Buffer,
        tokens: Buffer,
        logprobs: Buffer,
        lane: int,
        /,
    ) -> Self: ...
    def next_step(self, seen: int, spin_us: int, timeout_us: int, /) -> tuple[int, int, Report]: ...
    def rest_of_step(self, step: int, /) -> Report: ...
    def await_rows(self, step: int, spin_us: int, timeout_us: int, /) -> bool: ...
    def due_masks(self, step: int, /) -> list[tuple[int, int, int]]: ...
    def set_mask(self, slot: int, epoch: int, position: int, bits: Buffer | None, /) -> None: ...

def weights(
    logits: Buffer, top: float, temperature: float, out: Buffer, variant: int = 0, /
) -> None: ...
def total_weight(logits: Buffer, temperature: float, variant: int = 0, /) -> float: ...
def philox(
    c0: int, c1: int, c2: int, c3: int, k0: int, k1: int, /
) -> tuple[int, int, int, int]: ...
def variants() -> tuple[str, ...]: ...
