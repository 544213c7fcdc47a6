"""A vocabulary of a handful of tokens, some of which are not whole characters."""

from __future__ import annotations

from hybridgen.client.chunk import StreamChunk
from hybridgen.request import RequestOutput, TokenLogprob
from hybridgen.text.special_tokens import SpecialToken
from hybridgen.text.vocabulary import Vocabulary

HELLO, WORLD, FIRST_HALF, SECOND_HALF, END, HELLO_AGAIN = range(6)
VOCABULARY = Vocabulary(
    [b"Hello", b" w\xc3\xb6rld", b"\xe8\xaa", b"\x9e", b"<end>", b"Hello"],
    [SpecialToken("<end>", END)],
)
TEXT = "Hello wörld語"
IDS = [HELLO, WORLD, FIRST_HALF, SECOND_HALF, END]
LOGPROBS = [
    TokenLogprob(HELLO, -0.25, [(HELLO, -0.25), (WORLD, -2.0)]),
    TokenLogprob(WORLD, -3.0, [(HELLO, -0.5), (HELLO_AGAIN, -0.75)]),
    TokenLogprob(FIRST_HALF, float("-inf"), [(FIRST_HALF, float("-inf"))]),
    TokenLogprob(SECOND_HALF, -0.0, []),
    TokenLogprob(END, -1.0, [(END, -1.0)]),
]
CHUNKS = [
    StreamChunk("Hello", [HELLO], LOGPROBS[:1]),
    StreamChunk(" wörld", [WORLD], LOGPROBS[1:2]),
    StreamChunk("語", [FIRST_HALF, SECOND_HALF], LOGPROBS[2:4]),
    StreamChunk("", [END], LOGPROBS[4:]),
]
#: Of the output; larger than a double holds exactly.
SEED = 2**63 + 1


def output(finish_reason: str = "stop", *, has_logprobs: bool = True) -> RequestOutput:
    """What a request that gave TEXT ends with."""
    return RequestOutput(
        num_prompt_tokens=7,
        token_ids=IDS,
        text=TEXT,
        finish_reason=finish_reason,
        logprobs=LOGPROBS if has_logprobs else None,
        seed=SEED,
    )
