"""Every metric of HybridGen, in the order in which the page and the documentation show them."""

from __future__ import annotations

from functools import partial

from hybridgen.ipc.board import Role
from hybridgen.server import metric_source as source
from hybridgen.server.metric import Kind, MetricSpec

BRAIN, GPU, SAMPLER = Role.COSCHEDULER, Role.GPU, Role.SAMPLER
TOKENIZER, DETOKENIZER, GATEWAY = Role.TOKENIZER, Role.DETOKENIZER, Role.GATEWAY


def _spec(
    kind: Kind, name: str, unit: str, meaning: str, read: source.Read, *labels: str
) -> MetricSpec:
    return MetricSpec(f"hybridgen_{name}", kind, unit, meaning, read, labels)


_counter, _gauge = partial(_spec, "counter"), partial(_spec, "gauge")
_times, _means = partial(_spec, "histogram"), partial(_spec, "summary")


# --- the table ----------------------------------------------------------------------------------

_REQUESTS = (
    _gauge(
        "requests_running",
        "",
        "Requests in the batch of the gpu process.",
        source.read_total(BRAIN, "running"),
    ),
    _gauge(
        "requests_waiting",
        "",
        "Requests that are queued, being tokenized, or waiting for KV blocks.",
        source.read_total(BRAIN, "waiting"),
    ),
    _counter(
        "requests_accepted",
        "",
        "Requests taken in, from HTTP and from the SDK alike.",
        source.read_total(BRAIN, "accepted"),
    ),
    _counter(
        "requests_rejected",
        "",
        "Requests refused on arrival: queue full, too long, draining, malformed.",
        source.read_total(BRAIN, "rejected"),
    ),
    _counter(
        "requests_finished",
        "",
        "Requests that are over, by how they ended; stop covers stop strings and end-of-text.",
        source.by(
            {
                "stop": source.total_of(BRAIN, "ended_stop"),
                "length": source.total_of(BRAIN, "ended_length"),
                "cancelled": source.total_of(BRAIN, "cancelled"),
                "error": source.total_of(BRAIN, "ended_error"),
            }
        ),
        "reason",
    ),
    _counter(
        "requests_aborted",
        "",
        "Requests cancelled by their client, or because it left or would not read.",
        source.read_total(BRAIN, "cancelled"),
    ),
    _counter(
        "requests_poisoned",
        "",
        "Requests ended because workers kept dying while they served them.",
        source.read_total(BRAIN, "poisoned"),
    ),
    _counter(
        "preemptions",
        "",
        "Times that a running request gave its KV blocks back, to be computed again later.",
        source.read_total(BRAIN, "preempted"),
    ),
    _counter(
        "memory_overflows",
        "",
        "Times that a CUDA device had no memory to compute a request, to be computed again later.",
        source.read_total(BRAIN, "overflowed"),
    ),
)

_TOKENS = (
    _counter(
        "prompt_tokens",
        "tokens",
        "Tokens of all prompts that were accepted.",
        source.read_total(BRAIN, "prompt_tokens"),
    ),
    _counter(
        "generated_tokens",
        "tokens",
        "Generated tokens handed to clients' sockets.",
        source.read_total(DETOKENIZER, "sent_tokens"),
    ),
    _counter(
        "sampled_tokens",
        "tokens",
        "Tokens chosen by samplers, those behind a stop string included.",
        source.read_total(SAMPLER, "tokens"),
    ),
    _counter(
        "prefilled_tokens",
        "tokens",
        "Tokens whose KV was computed by prefill, replays included.",
        source.read_total(GPU, "prefill_tokens"),
    ),
    _counter(
        "replayed_tokens",
        "tokens",
        "Tokens scheduled for prefill again after a preemption or the death of the gpu process.",
        source.read_total(BRAIN, "replayed_tokens"),
    ),
    _counter(
        "prefix_cache_queries",
        "tokens",
        "Tokens of prompts that joined the batch, replays included.",
        source.read_total(BRAIN, "looked_up_tokens"),
    ),
    _counter(
        "prefix_cache_hits",
        "tokens",
        "Of these, tokens that were found in the KV cache and not computed.",
        source.read_total(BRAIN, "prefix_hit_tokens"),
    ),
    _counter(
        "prefix_cache_requests",
        "",
        "Times that a prompt found its beginning in the KV cache.",
        source.read_total(BRAIN, "prefix_hits"),
    ),
)

_LATENCIES = (
    _times(
        "time_to_first_token_seconds",
        "s",
        "From a request's arrival until its first token was handed to its client's socket.",
        source.histogram("ttft"),
    ),
    _times(
        "inter_token_latency_seconds",
        "s",
        "Between tokens of a request at its client's socket; tokens of one piece share its gap.",
        source.histogram("inter_token"),
    ),
    _times(
        "e2e_request_latency_seconds",
        "s",
        "From a request's arrival to its end, however it ended.",
        source.histogram("e2e"),
    ),
    _times(
        "request_queue_time_seconds",
        "s",
        "Time of a request in queues: for a slot, and for its place in the batch.",
        source.histogram("queue"),
    ),
    _times(
        "request_tokenize_time_seconds",
        "s",
        "From slot to encoded prompt: template, tokens, and the tokenizer's queue.",
        source.histogram("tokenize"),
    ),
    _times(
        "request_prefill_time_seconds",
        "s",
        "From joining the batch until the prompt is in the KV cache.",
        source.histogram("prefill"),
    ),
    _times(
        "request_decode_time_seconds",
        "s",
        "From the prompt being in the KV cache to the end.",
        source.histogram("decode"),
    ),
    _times(
        "request_prompt_tokens",
        "tokens",
        "Length of the prompts of ended requests.",
        source.histogram("prompt_tokens"),
    ),
    _times(
        "request_generated_tokens",
        "tokens",
        "Length of the answers of ended requests.",
        source.histogram("generated_tokens"),
    ),
)

_DEVICE = (
    _gauge(
        "gpu_utilization",
        "0 … 1",
        "Share of the last 10 s in which the gpu process computed steps or prompts.",
        source.one(lambda reading: reading.gpu_utilization),
    ),
    _gauge(
        "cpu_wait_time_us",
        "µs",
        "Mean time that a step of the last 10 s waited for the samplers' answers; on a CUDA "
        "device, which runs ahead, the time that the host waited, the device's own included.",
        source.one(lambda reading: reading.cpu_wait_us),
    ),
    _gauge(
        "kv_cache_usage_ratio",
        "0 … 1",
        "Share of the KV blocks that are in use.",
        source.one(source.kv_usage),
    ),
    _gauge(
        "kv_cache_blocks",
        "blocks",
        "KV blocks by state.",
        source.by({"used": source.used_blocks, "free": source.total_of(BRAIN, "free_blocks")}),
        "state",
    ),
    _gauge(
        "kv_cache_kept_blocks",
        "blocks",
        "Of the free KV blocks, those whose content is kept for prompts that begin alike.",
        source.read_total(BRAIN, "kept_blocks"),
    ),
    _means(
        "step_time_seconds",
        "s",
        "Decode steps: of the CPU device the arithmetic, of a CUDA device from step to step.",
        source.mean(GPU, "steps", "step_ns"),
    ),
    _counter(
        "step_rows",
        "",
        "Rows of all steps; by the number of steps, the mean batch size.",
        source.read_total(GPU, "rows"),
    ),
    _means(
        "sampling_time_seconds",
        "s",
        "Time of a sampler in its native kernel, per row.",
        source.mean(SAMPLER, "rows", "sampling_ns"),
    ),
    _means(
        "hand_off_time_seconds",
        "s",
        "From logits published to all tokens read back, per step; see cpu_wait_time_us.",
        source.mean(GPU, "steps", "sample_wait_ns"),
    ),
)

_STAGES = (
    _counter(
        "stage_seconds",
        "s",
        "Time in each stage: of work, summed over its processes; of queue, summed over requests.",
        source.by(
            {
                "tokenize": source.seconds(TOKENIZER, "encode_ns"),
                "queue": source.queued_s,
                "prefill": source.seconds(GPU, "prefill_ns"),
                "decode": source.seconds(GPU, "step_ns"),
                "sample": source.seconds(SAMPLER, "sampling_ns"),
                "detokenize": source.seconds(DETOKENIZER, "detokenize_ns"),
                "send": source.seconds(DETOKENIZER, "send_ns"),
            }
        ),
        "stage",
    ),
    _gauge(
        "ring_depth",
        "",
        "What waits between stages: prompts at tokenizers, steps that samplers have not answered, "
        "texts that detokenizers have in hand.",
        source.by(
            {
                "prompts": source.total_of(BRAIN, "encoding"),
                "logits": source.total_of(GPU, "open_steps"),
                "texts": source.total_of(DETOKENIZER, "open_texts"),
            }
        ),
        "ring",
    ),
    _counter(
        "blocked_sends",
        "",
        "Times that a client's socket was full.",
        source.read_total(DETOKENIZER, "blocked_sends"),
    ),
    _counter(
        "corrupt_frames",
        "",
        "Messages that could not be decoded.",
        source.one(
            lambda r: sum(
                r.total(role, "corrupt_frames") for role in (Role.SUPERVISOR, BRAIN, DETOKENIZER)
            )
        ),
    ),
    _counter(
        "repeated_frames",
        "",
        "Messages between processes dropped because they came twice or too late.",
        source.read_total(BRAIN, "repeated_frames"),
    ),
    _counter(
        "missed_frames",
        "",
        "Messages between processes that never came; both sides tell each other everything again.",
        source.read_total(BRAIN, "missed_frames"),
    ),
    _counter(
        "invalid_rows",
        "",
        "Rows of logits with NaN or without a finite value; each ends its request.",
        source.read_total(SAMPLER, "invalid_rows"),
    ),
)

_PROCESSES = (
    _gauge(
        "process_up",
        "0 or 1",
        "Whether the process works.",
        source.each(lambda process: int(process.is_up)),
        "process",
        "role",
    ),
    _counter(
        "process_restarts",
        "",
        "Times that the process was replaced.",
        source.each(lambda process: max(0, process.seen.incarnation - 1)),
        "process",
        "role",
    ),
    _gauge(
        "process_progress_age_seconds",
        "s",
        "Since the process last did something, to a second; it grows while there is no work.",
        source.each(lambda process: process.progress_age_s),
        "process",
        "role",
    ),
)

_HTTP = (
    _counter(
        "http_requests", "", "HTTP requests, of any path.", source.read_total(GATEWAY, "requests")
    ),
    _gauge("http_open_requests", "", "HTTP requests in hand.", source.read_total(GATEWAY, "open")),
    _counter("http_streams", "", "Answers sent as events.", source.read_total(GATEWAY, "streams")),
    _counter(
        "http_refused", "", "Answers with a status of 4xx.", source.read_total(GATEWAY, "refused")
    ),
    _counter(
        "http_errors",
        "",
        "Answers with a status of 5xx, and errors within a stream.",
        source.read_total(GATEWAY, "errors"),
    ),
    _counter(
        "http_disconnects",
        "",
        "Clients that left before their answer was complete.",
        source.read_total(GATEWAY, "disconnects"),
    ),
)

#: Heading → its metrics.
TABLE: dict[str, tuple[MetricSpec, ...]] = {
    "Requests": _REQUESTS,
    "Tokens": _TOKENS,
    "What clients wait for": _LATENCIES,
    "Device": _DEVICE,
    "Stages": _STAGES,
    "Processes": _PROCESSES,
    "HTTP": _HTTP,
}
METRICS = tuple(spec for specs in TABLE.values() for spec in specs)
