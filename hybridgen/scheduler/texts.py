"""Texts in the hands of the detokenizers: opened with the slot, closed when it ends early."""

from __future__ import annotations

from hybridgen.messages import CloseText, OpenText, RequestAccepted
from hybridgen.scheduler.outbox import Outbox
from hybridgen.scheduler.request_record import RequestRecord
from hybridgen.scheduler.worker_pool import PoolWorker, WorkerPool


class Texts:
    """A text is open while the present process of its detokenizer was told of it.

    Orders are repeated to each new process; OpenText and CloseText of a text that is finished
    already make the detokenizer repeat its TextFinished.
    """

    def __init__(self, *, detokenizers: WorkerPool, outbox: Outbox) -> None:
        self._detokenizers = detokenizers
        self._outbox = outbox

    def check(self) -> None:
        """Texts can be sent, now or soon.

        Raises:
            RestartBudgetSpent: no detokenizer is left.
        """
        self._detokenizers.check()

    def assign(self, record: RequestRecord) -> None:
        """Choose a detokenizer.

        Raises:
            RestartBudgetSpent: none is left.
        """
        record.detokenizer = self._detokenizers.choose().index

    def tell_client(self, record: RequestRecord) -> None:
        """Say (again) that the request has a slot and who sends its text."""
        accepted = RequestAccepted(record.request_id, record.detokenizer, record.seed)
        self._outbox.to_client(record.client_id, accepted)

    def open(self, record: RequestRecord) -> None:
        """Have the text sent, now or as soon as the detokenizer is there."""
        worker = self._detokenizers[record.detokenizer]
        worker.records[record.slot] = record
        if worker.is_attached:
            record.is_text_open = True
            self._outbox.to_worker(worker.name, OpenText(record.slot, record.epoch))

    def close(self, record: RequestRecord) -> None:
        """The request was ended from outside: flush what there is."""
        worker = self._detokenizers[record.detokenizer]
        if record.is_text_open and worker.is_attached:
            self._outbox.to_worker(worker.name, CloseText(record.slot, record.epoch))

    def forget(self, record: RequestRecord) -> None:
        """The slot is free."""
        record.is_text_open = False
        if record.detokenizer in self._detokenizers:
            self._detokenizers[record.detokenizer].records.pop(record.slot, None)

    def resend(self, worker: PoolWorker) -> None:
        """``worker`` attached: tell it of all its texts, also of finished ones without an ack."""
        for record in list(worker.records.values()):
            if record.final is not None and record.text is None:
                continue  # its client was told that there is no text
            self.open(record)
            if record.is_cut:
                self.close(record)

    def lose(self, worker: PoolWorker) -> None:
        """The process is gone; its texts are open nowhere."""
        for record in worker.records.values():
            record.is_text_open = False
