"""Prompts in, ids into the slot's token row, a typed fact back."""

from __future__ import annotations

from hybridgen.errors import ContextLengthExceeded, InvalidRequest
from hybridgen.formats.mock_model import (
    ASSISTANT_ID,
    BOS_ID,
    EOS_ID,
    USER_ID,
    VOCAB_SIZE,
    mock_model,
)
from hybridgen.ipc.coscheduler_line import CoschedulerLine
from hybridgen.ipc.slot_table import SlotWord
from hybridgen.messages import (
    AttachWorker,
    DrainWorker,
    EncodeProbe,
    EncodePrompt,
    ProbeEncoded,
    PromptEncoded,
    PromptRejected,
    TokenizerOrder,
    WorkerAttached,
    WorkerReady,
)
from hybridgen.request import (
    ChatMessage,
    ChatPrompt,
    Grammar,
    IdsPrompt,
    Prompt,
    SamplingParams,
    TextPrompt,
)
from hybridgen.text.prompt_encoder import build_prompt_encoder
from hybridgen.workers.tokenizer import Tokenizer, run
from tests.support.eventually import eventually
from tests.workers.workplace import FactSocket, Workplace


class Desk:
    """A tokenizer and the coscheduler that it answers."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self.coscheduler: FactSocket = place.open_coscheduler()
        encoder = build_prompt_encoder(
            mock_model(place.config).tokenizer, "", max_model_len=place.slots.max_model_len
        )
        context = place.context("tokenizer-0")
        line = CoschedulerLine(context.spec, TokenizerOrder)
        place.adopt(line)
        self.tokenizer = Tokenizer(context, encoder, line, place.slots)
        self.tokenizer.introduce()
        self.coscheduler.wait_for(WorkerAttached)

    def order(self, *orders: EncodePrompt | EncodeProbe | AttachWorker) -> list[object]:
        """Send orders behind which a probe marks the end; the facts that come before its answer."""
        mark = EncodeProbe(999, TextPrompt("the mark"))
        num_before = len(self.coscheduler.facts)
        self.coscheduler.send("tokenizer-0", *orders, mark)

        def is_marked() -> bool:
            self.tokenizer.serve_waiting()
            new = self.coscheduler.receive()[num_before:]
            return any(isinstance(f, ProbeEncoded) and f.probe_id == mark.probe_id for f in new)

        eventually(is_marked, 5.0)
        return self.coscheduler.facts[num_before:-1]

    def encode(self, prompt: Prompt, slot: int = 2, grammar: Grammar | None = None) -> list[object]:
        """Let the prompt of a fresh occupant be encoded."""
        epoch = self.place.fill_slot(slot, SamplingParams())
        return self.order(EncodePrompt(slot, epoch, prompt, grammar))

    def counters(self) -> dict[str, int]:
        return self.place.snapshot("tokenizer-0").counters


def epoch_of(place: Workplace, slot: int) -> int:
    return place.slots.load(slot, SlotWord.EPOCH)


def test_writes_the_ids_into_the_row_and_says_how_many(workplace: Workplace) -> None:
    desk = Desk(workplace)
    (fact,) = desk.encode(IdsPrompt([7, 8, 9]))
    assert fact == PromptEncoded(2, epoch_of(workplace, 2), 3, incarnation=1)
    assert workplace.tokens.read(2, 0, 4) == [7, 8, 9, 0]
    assert workplace.slots.load(2, SlotWord.PROMPT_LEN) == 0  # the coscheduler's word
    counters = desk.counters()
    assert (counters["prompts"], counters["tokens"], counters["rejected"]) == (1, 3, 0)


def test_renders_a_conversation(workplace: Workplace) -> None:
    desk = Desk(workplace)
    (fact,) = desk.encode(ChatPrompt([ChatMessage("user", "<|eos|>")]))
    assert isinstance(fact, PromptEncoded)
    ids = workplace.tokens.read(2, 0, fact.num_tokens)
    assert (ids[0], ids[1], ids[-1]) == (BOS_ID, USER_ID, ASSISTANT_ID)
    assert EOS_ID not in ids  # what a user writes stays text


def test_what_cannot_be_encoded_is_rejected_typed(workplace: Workplace) -> None:
    desk = Desk(workplace)
    (fact,) = desk.encode(IdsPrompt([VOCAB_SIZE]))
    assert isinstance(fact, PromptRejected)
    assert (fact.slot, fact.epoch) == (2, epoch_of(workplace, 2))
    error = fact.error.exception()
    assert isinstance(error, InvalidRequest)
    assert error.fields["value"] == VOCAB_SIZE
    assert workplace.tokens.read(2, 0, 1) == [0]
    assert desk.counters()["rejected"] == 1


def test_a_grammar_that_cannot_be_followed_is_rejected_by_its_key(workplace: Workplace) -> None:
    desk = Desk(workplace)
    wrong = Grammar("regex", "(a", "structured_outputs.regex")
    right = Grammar("regex", "a", "structured_outputs.regex")
    facts = [desk.encode(IdsPrompt([7]), grammar=grammar)[-1] for grammar in (wrong, right)]
    assert [type(fact) for fact in facts] == [PromptRejected, PromptEncoded]
    assert isinstance(facts[0], PromptRejected)
    assert facts[0].error.fields["param"] == "structured_outputs.regex"


def test_a_stop_regex_that_cannot_be_used_is_rejected(workplace: Workplace) -> None:
    desk = Desk(workplace)
    epochs = [workplace.fill_slot(slot, SamplingParams()) for slot in (0, 1)]
    facts = desk.order(
        EncodePrompt(0, epochs[0], IdsPrompt([7]), stop_regex="(a+)+$"),
        EncodePrompt(1, epochs[1], IdsPrompt([7]), stop_regex="a+b"),
    )
    assert [type(fact) for fact in facts] == [PromptRejected, PromptEncoded]
    assert isinstance(facts[0], PromptRejected)
    assert facts[0].error.code == "invalid_request"
    assert facts[0].error.fields["param"] == "stop_regex"


def test_a_prompt_longer_than_the_context_is_rejected(workplace: Workplace) -> None:
    desk = Desk(workplace)
    (fact,) = desk.encode(IdsPrompt([1] * (workplace.slots.max_model_len + 1)))
    assert isinstance(fact, PromptRejected)
    assert isinstance(fact.error.exception(), ContextLengthExceeded)


def test_an_empty_prompt_and_a_bad_role_are_rejected(workplace: Workplace) -> None:
    desk = Desk(workplace)
    facts = [
        *desk.encode(TextPrompt("")),
        *desk.encode(ChatPrompt([ChatMessage("nobody", "hello")]), slot=3),
    ]
    assert [type(fact) for fact in facts] == [PromptRejected] * 2
    empty, unknown = desk.coscheduler.of(PromptRejected)
    assert [fact.error.code for fact in (empty, unknown)] == ["invalid_request"] * 2
    assert "unknown role nobody" in str(unknown.error.exception())


def test_an_order_for_an_earlier_occupant_is_ignored(workplace: Workplace) -> None:
    desk = Desk(workplace)
    old = workplace.fill_slot(2, SamplingParams())
    workplace.fill_slot(2, SamplingParams())
    assert desk.order(EncodePrompt(2, old, IdsPrompt([7]))) == []
    assert workplace.tokens.read(2, 0, 1) == [0]


def test_one_bad_prompt_does_not_stop_the_next(workplace: Workplace) -> None:
    desk = Desk(workplace)
    epochs = [workplace.fill_slot(slot, SamplingParams()) for slot in (0, 1)]
    facts = desk.order(
        EncodePrompt(0, epochs[0], IdsPrompt([-1])), EncodePrompt(1, epochs[1], IdsPrompt([5]))
    )
    assert [type(fact) for fact in facts] == [PromptRejected, PromptEncoded]


def test_a_probe_is_answered_with_ids_or_the_error(workplace: Workplace) -> None:
    desk = Desk(workplace)
    good, bad = desk.order(EncodeProbe(1, TextPrompt("AB")), EncodeProbe(2, IdsPrompt([-1])))
    assert isinstance(good, ProbeEncoded)
    assert isinstance(bad, ProbeEncoded)
    assert (good.probe_id, good.ids[-2:], good.error) == (1, [65, 66], None)
    assert (bad.probe_id, bad.ids) == (2, [])
    assert bad.error is not None
    assert bad.error.code == "invalid_request"


def test_introduces_itself_when_asked(workplace: Workplace) -> None:
    desk = Desk(workplace)
    (fact,) = desk.order(AttachWorker(4))
    assert fact == WorkerAttached(role="tokenizer", index=0, incarnation=1, answers=4)


def test_runs_until_it_is_told_to_exit(workplace: Workplace) -> None:
    context = workplace.context("tokenizer-0")
    workplace.order("tokenizer-0", DrainWorker())
    assert run(context.spec, context.control) == 0
    assert [type(fact) for fact in workplace.facts("tokenizer-0")] == [WorkerReady]
