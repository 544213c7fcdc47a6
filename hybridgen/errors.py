"""Every error of HybridGen, in one tree.

::

    HybridGenError
    ├ ConfigError                       exit 2 before anything starts
    │ └ NotPermitted                    exit 77
    ├ RequestError                      one request ends, the server goes on
    │ ├ InvalidRequest          400
    │ ├ ContextLengthExceeded   400
    │ ├ ModelNotFound           404
    │ ├ QueueFull               429
    │ ├ Draining                503
    │ ├ DeadlineExceeded        504
    │ ├ Cancelled               499
    │ ├ SlowReader              499
    │ ├ GrammarSpent            400
    │ ├ InvalidLogits           500
    │ └ PoisonRequest           500
    ├ WorkerError                       the supervisor's matter
    │ ├ StartFailed · Died · Stalled · DeviceLost · AlreadyRunning · AddressUnavailable
    │ └ RestartBudgetSpent      503
    ├ IpcError
    │ ├ SegmentMismatch · SharedMemoryFull · RingFull · PeerGone · ChannelTimeout · MessageCorrupt
    ├ CapacityError                     normal life, caught by the scheduler
    │ ├ OutOfBlocks · OutOfHostMemory · OutOfDeviceMemory
    ├ ModelError                        exit 65
    │ ├ UnsupportedModel · WeightsMismatch · BadModelFile
    └ InternalError                     a bug of ours

An error's text says what is wrong, the value, the limit and the remedy. The same four travel as
``fields``, so that an error crosses a process boundary as ``(code, message, fields)`` and comes
out as the same class on the other side; nothing is ever pickled on the wire.
"""

from __future__ import annotations

from typing import Any, ClassVar

FieldValue = str | int | float | bool | None
MAX_SHOWN_CHARS = 500


class HybridGenError(Exception):
    """Root of the tree.

    Args:
        message: what is wrong, in one sentence, without value, limit and remedy.
        value: the offending value; limit: what would have been accepted; remedy: what to do.
        fields: further facts (scalars only) that a program may want to read.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 70

    def __init__(
        self,
        message: str,
        *,
        value: FieldValue = None,
        limit: FieldValue = None,
        remedy: str | None = None,
        **fields: FieldValue,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, FieldValue] = {
            key: field
            for key, field in {"value": value, "limit": limit, "remedy": remedy, **fields}.items()
            if field is not None
        }

    def __str__(self) -> str:
        parts = [self.message]
        if "value" in self.fields:
            parts.append(f"got {self.fields['value']}")
        if "limit" in self.fields:
            parts.append(f"limit {self.fields['limit']}")
        text = "; ".join(parts)
        return f"{text}. {self.fields['remedy']}" if "remedy" in self.fields else text

    def __reduce__(self) -> tuple[Any, ...]:
        return from_wire, (self.code, self.message, self.fields)


class ConfigError(HybridGenError):
    """A flag, environment variable or config file asks for something impossible."""

    code = "config_error"
    http_status = 500
    exit_code = 2


class NotPermitted(ConfigError):
    """The system does not let this user do what was asked for."""

    code = "not_permitted"
    exit_code = 77


class RequestError(HybridGenError):
    """One request ends; the server goes on."""

    code = "request_error"
    http_status = 400
    exit_code = 2


class InvalidRequest(RequestError):
    """A parameter is out of range or does not fit the others."""

    code = "invalid_request"


class ContextLengthExceeded(RequestError):
    """Prompt plus requested tokens do not fit the context."""

    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    """The request names a model that is not served here."""

    code = "model_not_found"
    http_status = 404


class QueueFull(RequestError):
    """The backlog is at its limit; field ``retry_after_s`` says when to come back."""

    code = "queue_full"
    retryable = True
    http_status = 429
    exit_code = 70


class Draining(RequestError):
    """The server is stopping and takes no new work."""

    code = "draining"
    retryable = True
    http_status = 503
    exit_code = 70


class DeadlineExceeded(RequestError):
    """The request's own deadline passed."""

    code = "deadline_exceeded"
    retryable = True
    http_status = 504
    exit_code = 70


class Cancelled(RequestError):
    """The client cancelled, or is gone."""

    code = "cancelled"
    http_status = 499
    exit_code = 130


class SlowReader(RequestError):
    """The client did not read its text for too long; no token was dropped silently."""

    code = "slow_reader"
    http_status = 499
    exit_code = 70


class GrammarSpent(RequestError):
    """Following the request's grammar costs more than its limits allow."""

    code = "grammar_spent"
    http_status = 400


class InvalidLogits(RequestError):
    """The model produced NaN, +inf, or no finite logit for this request's row."""

    code = "invalid_logits"
    http_status = 500
    exit_code = 70


class PoisonRequest(RequestError):
    """The request was being served in two deaths of the same kind and is quarantined."""

    code = "poison_request"
    http_status = 500
    exit_code = 70


class WorkerError(HybridGenError):
    """Something about a process; the supervisor acts on it."""

    code = "worker_error"


class StartFailed(WorkerError):
    """A process could not start; carries the child's own root cause."""

    code = "start_failed"


class Died(WorkerError):
    """A process is gone."""

    code = "died"


class Stalled(WorkerError):
    """A process has work and makes no progress."""

    code = "stalled"


class DeviceLost(WorkerError):
    """The device failed for good: only a new process can use it again."""

    code = "device_lost"


class RestartBudgetSpent(WorkerError):
    """A pool died too often in its window."""

    code = "restart_budget_spent"
    http_status = 503


class AlreadyRunning(WorkerError):
    """Another instance holds the runtime directory; field ``pid`` names it."""

    code = "already_running"
    exit_code = 75


class AddressUnavailable(WorkerError):
    """The address of the HTTP gateway cannot be listened on, most often because it is taken."""

    code = "address_unavailable"
    exit_code = 69


class IpcError(HybridGenError):
    """Shared memory or a channel."""

    code = "ipc_error"


class SegmentMismatch(IpcError):
    """A segment's header is not the expected one; names both."""

    code = "segment_mismatch"


class SharedMemoryFull(IpcError):
    """Shared memory cannot hold the planned segments; fields ``need_bytes``, ``have_bytes``."""

    code = "shared_memory_full"


class RingFull(IpcError):
    """Every slot of a ring is taken."""

    code = "ring_full"


class PeerGone(IpcError):
    """The other side of a channel is not connected."""

    code = "peer_gone"
    retryable = True
    exit_code = 69


class ChannelTimeout(IpcError):
    """No answer within the time limit."""

    code = "channel_timeout"
    retryable = True
    exit_code = 69


class MessageCorrupt(IpcError):
    """A frame is not a message of ours."""

    code = "message_corrupt"


class CapacityError(HybridGenError):
    """Normal life under load; the scheduler catches these."""

    code = "capacity_error"
    retryable = True
    http_status = 503


class OutOfBlocks(CapacityError):
    """No free KV block."""

    code = "out_of_blocks"


class OutOfHostMemory(CapacityError):
    """Host memory for KV is spent."""

    code = "out_of_host_memory"


class OutOfDeviceMemory(CapacityError):
    """The device cannot hold the plan, or has no memory left to compute a request."""

    code = "out_of_device_memory"


class ModelError(HybridGenError):
    """The model, its tokenizer or its template cannot be used.

    Texts are cut to ``MAX_SHOWN_CHARS``: names and values come out of files that nobody trusts.
    """

    code = "model_error"
    exit_code = 65

    def __init__(self, message: str, **fields: Any) -> None:
        shown = {key: _cut(item) if isinstance(item, str) else item for key, item in fields.items()}
        super().__init__(_cut(message), **shown)


class UnsupportedModel(ModelError):
    """A well-formed model of a kind that is not implemented; names the kind."""

    code = "unsupported_model"


class WeightsMismatch(ModelError):
    """Tensors do not fit the model's configuration; names the tensor and both shapes."""

    code = "weights_mismatch"


class BadModelFile(ModelError):
    """A damaged or hostile file; names the field."""

    code = "bad_model_file"


class InternalError(HybridGenError):
    """A bug of ours; please report it."""

    code = "internal_error"


def _walk(cls: type[HybridGenError]) -> list[type[HybridGenError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _walk(sub))]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


#: code → class, for every class of the tree.
BY_CODE: dict[str, type[HybridGenError]] = {cls.code: cls for cls in _walk(HybridGenError)}


def from_wire(code: str, message: str, fields: dict[str, FieldValue]) -> HybridGenError:
    """Rebuild an error from its wire form; an unknown code becomes ``InternalError``."""
    cls = BY_CODE.get(code)
    if cls is None:
        cls, fields = InternalError, {**fields, "unknown_code": code}
    error = cls(message)
    error.fields = dict(fields)
    return error
