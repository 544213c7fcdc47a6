"""The tokenizer: chat template + text → ids, written into the slot's token row.

It also compiles the grammar and the stop_regex of a request, only to refuse one that is malformed
or too costly before anything is computed for it.
"""

from __future__ import annotations

import time

from hybridgen import fault
from hybridgen.errors import HybridGenError
from hybridgen.formats.inspect import inspect_model
from hybridgen.ipc.channel import Poller
from hybridgen.ipc.control import ControlSocket
from hybridgen.ipc.coscheduler_line import CoschedulerLine
from hybridgen.ipc.pulse import PROBE_SLOT
from hybridgen.ipc.slot_table import SlotTable, SlotWord
from hybridgen.ipc.token_store import TokenStore
from hybridgen.messages import (
    UNASKED,
    AttachWorker,
    EncodeProbe,
    EncodePrompt,
    ErrorInfo,
    ProbeEncoded,
    PromptEncoded,
    PromptRejected,
    TokenizerOrder,
    WorkerAttached,
    WorkerSpec,
)
from hybridgen.sampling.grammar_check import MAX_COMPILE_S, GrammarCheck
from hybridgen.sampling.lazy_matchers import LazyMatchers
from hybridgen.text.cpu_limit import CpuTicks
from hybridgen.text.prompt_encoder import PromptEncoder, build_prompt_encoder
from hybridgen.text.regex_automaton import regex_automaton
from hybridgen.workers.lifecycle import IDLE_WAIT_S, WorkerContext


def run(spec: WorkerSpec, control: ControlSocket) -> int:
    """Encode prompts until told to exit; the exit code."""
    context = WorkerContext(spec, control)
    info = inspect_model(spec.model_path, spec.config)
    slots = SlotTable(context.segment("slots").buf)
    encoder = build_prompt_encoder(
        info.tokenizer,
        spec.config.model.chat_template,
        max_model_len=slots.max_model_len,
        tool_call_parser=spec.config.model.tool_call_parser,
    )
    coscheduler = CoschedulerLine(spec, TokenizerOrder)
    tokenizer = Tokenizer(context, encoder, coscheduler, slots)
    tokenizer.introduce()
    context.ready()
    poller = Poller()
    poller.add(coscheduler)
    poller.add(control)
    with CpuTicks():  # templates run under a limit
        while not context.should_exit:
            poller.poll(IDLE_WAIT_S)
            context.line.beat()
            context.read_orders()
            tokenizer.serve_waiting()
    coscheduler.close()
    return 0


class Tokenizer:
    """Answers the coscheduler's orders, one prompt at a time."""

    def __init__(
        self,
        context: WorkerContext,
        encoder: PromptEncoder,
        coscheduler: CoschedulerLine,
        slots: SlotTable,
    ) -> None:
        self._context = context
        self._encoder = encoder
        self._coscheduler = coscheduler
        self._slots = slots
        self._tokens = TokenStore(context.segment("tokens").buf)
        spec = context.spec
        matchers = LazyMatchers(spec.model_path, spec.config, MAX_COMPILE_S)
        self._grammars = GrammarCheck(matchers)

    def introduce(self, asked: AttachWorker = UNASKED) -> None:
        """Tell the coscheduler that this incarnation is here."""
        spec = self._context.spec
        self._coscheduler.tell(
            WorkerAttached(
                role=spec.role,
                index=spec.index,
                incarnation=spec.incarnation,
                answers=asked.coscheduler_incarnation,
                call=asked.call,
            )
        )

    def serve_waiting(self) -> None:
        """Handle every order that has arrived."""
        while (order := self._coscheduler.receive()) is not None:
            if isinstance(order, EncodePrompt):
                if self._slots.load(order.slot, SlotWord.EPOCH) == order.epoch:
                    self._context.line.serve(order.slot, order.epoch)
                    self._coscheduler.tell(self._encode(order))
                    self._context.line.serve_nobody()
            elif isinstance(order, EncodeProbe):
                self._context.line.serve(PROBE_SLOT, order.probe_id)
                self._coscheduler.tell(self._probe(order))
                self._context.line.serve_nobody()
            elif isinstance(order, AttachWorker):
                self.introduce(order)

    def _encode(self, order: EncodePrompt) -> PromptEncoded | PromptRejected:
        fault.point("tokenizer.encode")
        line, spec = self._context.line, self._context.spec
        who = (spec.incarnation, spec.index)
        line.tick()
        started_ns = time.monotonic_ns()
        try:
            if order.grammar is not None:
                self._grammars.check(order.grammar)
            if order.stop_regex is not None:
                regex_automaton(order.stop_regex)
            ids = self._encoder.encode(order.prompt)
        except HybridGenError as error:
            line.add("rejected", 1)
            return PromptRejected(order.slot, order.epoch, ErrorInfo.of(error), *who)
        self._tokens.write(order.slot, 0, ids)
        line.add("encode_ns", time.monotonic_ns() - started_ns)
        line.add("prompts", 1)
        line.add("tokens", len(ids))
        return PromptEncoded(order.slot, order.epoch, len(ids), *who)

    def _probe(self, order: EncodeProbe) -> ProbeEncoded:
        try:
            return ProbeEncoded(order.probe_id, self._encoder.encode(order.prompt))
        except HybridGenError as error:
            return ProbeEncoded(order.probe_id, error=ErrorInfo.of(error))
