from typing_extensions import Buffer

def sample_row(
    logits: Buffer, sampling: Buffer, history: Buffer, prompt_len: int, variant: int = 0, /
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
def weights(
    logits: Buffer, top: float, temperature: float, out: Buffer, variant: int = 0, /
) -> None: ...
def total_weight(logits: Buffer, temperature: float, variant: int = 0, /) -> float: ...
def philox(
    c0: int, c1: int, c2: int, c3: int, k0: int, k1: int, /
) -> tuple[int, int, int, int]: ...
def variants() -> tuple[str, ...]: ...
