"""The configuration, declared once.

Each section is frozen; bounds stand in the types; the text under each field is its documentation.
Command-line options, environment variables, the keys of ``--config FILE`` and
docs/configuration.md are all generated from here: field ``a_b`` is ``--a-b``, ``HYBRIDGEN_A_B``
and the key ``a-b``. Sections only group; names are unique across them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

#: Longest context that is served, in tokens.
MAX_MODEL_LEN = 32_768
#: Connections that the kernel completes while no gateway accepts any.
LISTEN_BACKLOG = 1024

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
MemoryAmount = Annotated[
    float | str, Meta(description="share or bytes, as 0.9, 90%, 60GiB, 60GB or 64e9")
]
PoolSize = Annotated[int, Meta(ge=0, le=64)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class ModelSection(Section, frozen=True):
    """What is served."""

    model: str = "demo"
    """A .hybridgen or GGUF file, a folder in Hugging Face layout, `demo`, or `mock`."""
    served_model_name: str = ""
    """Name that clients use; empty means the model's own."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights for the shape that a config.json describes (CUDA only)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weights and KV cache; `auto` takes bfloat16; float16 needs a CUDA device."""
    max_model_len: Annotated[int, Meta(ge=0, le=MAX_MODEL_LEN)] = 0
    """Context length in tokens; 0 means the model's own, at most 32768."""
    chat_template: str = ""
    """File with a Jinja chat template that replaces the model's."""
    tool_call_parser: Literal["auto", "none", "hermes", "llama3_json", "mistral"] = "auto"
    """How the model writes calls of tools; `auto` looks at its chat template, `none` refuses
    requests with tools."""
    reasoning_parser: Literal["auto", "none", "qwen3", "deepseek_r1", "mistral"] = "auto"
    """How the model marks its reasoning; `auto` looks at its chat template, `none` leaves it in
    the answer."""
    cache_dir: str = ""
    """Where prepared weights are kept; empty means ~/.cache/hybridgen (XDG_CACHE_HOME counts)."""
    verify_weights: bool = False
    """Compare every byte of a .hybridgen file with its hashes before it is served."""


class DeviceSection(Section, frozen=True):
    """The gpu process."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the dense arithmetic runs; `auto` takes a CUDA device where one can be used."""
    block_size: Literal[16] = 16
    """Tokens per KV block."""
    num_kv_blocks: Count = 0
    """KV blocks; 0 means as many as kv_cache_memory holds."""
    kv_cache_memory: Count = 0
    """Bytes for the KV cache; 0 means enough for max_num_seqs × 1,024 tokens (CPU)."""
    gpu_memory: MemoryAmount = 0.9
    """Memory of a CUDA device for weights, KV cache and everything else: a share, or bytes."""
    quantize_weights: Literal[16, 8] = 16
    """Bits of a weight on a CUDA device; 8: INT8 with a scale per output row, 16: as loaded."""
    prefill_budget_ms: Annotated[float, Meta(ge=1.0, le=10_000.0)] = 50.0
    """How long prompts may delay one decode step of a CUDA device; while 64 or more prompt tokens
    wait for each running sequence, by 8,192 of them at least."""
    sample_on_gpu: Literal["auto", "true", "false"] = "auto"
    """Where a CUDA device's tokens are chosen: `false` by the samplers, `true` on the device where
    parameters allow it, `auto` wherever steps turn out shorter. The tokens are the same."""
    hand_off: Literal["auto", "stream", "host"] = "auto"
    """How a CUDA device and the samplers meet: `stream` memory operations, or waits of the host."""
    num_compute_threads: Annotated[int, Meta(ge=0, le=256)] = 0
    """Threads of the CPU device; 0 means all CPUs this process may use."""


class SchedulerSection(Section, frozen=True):
    """Admission and batching."""

    max_num_seqs: Annotated[int, Meta(ge=1, le=1024)] = 64
    """Most sequences in one decode step."""
    prefill_chunk: Annotated[int, Meta(ge=16, le=8192)] = 64
    """Most prompt tokens computed between two decode steps."""
    enable_prefix_caching: bool = True
    """Prompts that begin alike share KV blocks, those of earlier requests included."""
    backlog_limit: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """Queued requests beyond which new ones are answered queue_full with retry_after_s."""
    request_timeout_s: Seconds = 600.0
    """Deadline of a request that gives none itself."""
    ack_timeout_s: Seconds = 10.0
    """How long a finished request's text is kept for a client that has not confirmed it."""
    slow_reader_timeout_s: Seconds = 30.0
    """How long a client may leave its text unread before its request is cancelled; over HTTP half
    a second while other requests wait for a place."""


class PoolSection(Section, frozen=True):
    """The CPU processes around the gpu process."""

    num_tokenizers: PoolSize = 0
    """Tokenizer processes; 0 means from the CPU budget."""
    num_samplers: PoolSize = 0
    """Sampler processes; 0 means from the CPU budget."""
    num_detokenizers: PoolSize = 0
    """Detokenizer processes; 0 means from the CPU budget."""
    num_cpu_threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    """CPU budget of all CPU roles; 0 means 80 % of the CPUs this process may use."""
    spin_us: Annotated[int, Meta(ge=-1, le=100_000)] = -1
    """How long a waiter spins before it sleeps; -1 means 0 below 8 CPUs and 50 from there on."""
    disable_cpu_affinity: bool = False
    """Do not pin processes."""
    cgroup: Literal["auto", "true", "false"] = "auto"
    """Control groups (v2), a leaf for each role: `auto` where `hybridgen serve` may make them,
    `true` with all controllers or no start."""
    cgroup_cpu_weight: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """The tree's share of crowded CPUs against its neighbours; 0 leaves the kernel's 100."""
    cgroup_memory_max: MemoryAmount = 0
    """Memory of all processes together, shared memory included, as a limit; 0 means none."""


class ServerSection(Section, frozen=True):
    """The tree as a whole."""

    runtime_dir: str = ""
    """Directory (mode 0700) of the sockets; empty means a fresh one per instance."""
    uri_file: str = ""
    """Write the address for clients to this file once the tree is ready."""
    drain_timeout_s: Seconds = 30.0
    """How long running requests may take after a stop was asked for."""
    start_timeout_s: Seconds = 600.0
    """How long the tree may take until every process is ready."""
    pool_restart_limit: Count = 5
    """Deaths of tokenizers, samplers, detokenizers or gateways within 30 s that are replaced."""
    gpu_restart_limit: Count = 3
    """Deaths of the gpu process within 300 s that are still replaced."""
    coscheduler_restart_limit: Count = 3
    """Deaths of the coscheduler within 60 s that are still replaced."""
    hang_timeout_s: Annotated[float, Meta(ge=3.0, le=3600.0)] = 20.0
    """A process that stands still so long is ended and replaced; the gpu process has its own."""
    gpu_hang_timeout_s: Annotated[float, Meta(ge=3.0, le=3600.0)] = 30.0
    """The same for the gpu process, whose steps and device take longer."""
    incident_dir: str = ""
    """Folder for reports about processes that hung; empty means ~/.local/state/hybridgen/incidents
    (XDG_STATE_HOME counts)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is logged to standard error; `debug` also tells when each piece of text was sent."""
    log_format: Literal["text", "json"] = "text"
    """`json`: every line on standard error is one JSON object."""
    enable_tracing: Literal["auto", "true", "false"] = "auto"
    """Export a span for each request by OTLP: `auto` if OTEL_* variables configure an endpoint."""


class HttpSection(Section, frozen=True):
    """The gateway: HTTP/1.1 and HTTP/2 on one port."""

    num_gateways: Annotated[int, Meta(ge=-1, le=1)] = -1
    """Gateway processes; -1 means 1 for `hybridgen serve` and none for a tree that a program (LLM,
    `hybridgen chat`) starts for itself."""
    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    """Address to listen on; one that other machines can reach needs api_key_file or insecure."""
    port: Annotated[int, Meta(ge=1, le=65_535)] = 8080
    """TCP port to listen on."""
    uds: str = ""
    """Unix domain socket (mode 0600) to listen on instead of host and port."""
    api_key_file: str = ""
    """File with the keys that clients may use, one a line; empty means that none is asked for."""
    allowed_hosts: str = ""
    """Names, separated by commas, that the server answers to besides localhost and loopback
    addresses; `*` is any. Empty means any too, except on loopback without a key."""
    allowed_origins: str = ""
    """Origins, separated by commas, whose web pages may read answers (CORS); `*` is any."""
    console: bool = True
    """Serve a page to chat and to watch the processes at `/`."""
    enable_metrics: bool = True
    """Serve numbers for Prometheus at `/metrics`."""
    metrics_without_key: bool = False
    """Answer `/metrics` also to those who show no key."""
    lenient: bool = False
    """Ignore unknown keys of a body, named in the answer's header x-hybridgen-ignored."""
    insecure: bool = False
    """Listen on an address that other machines can reach without asking for a key."""
    tls_certificate: str = ""
    """PEM file with the certificate chain; with tls_key it turns TLS on."""
    tls_key: str = ""
    """PEM file with the private key of tls_certificate."""
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 32 << 20
    """Longest body of a request."""
    max_connections: Annotated[int, Meta(ge=1, le=65_536)] = 2048
    """Connections at once; further ones wait in the kernel."""


class MockSection(Section, frozen=True):
    """The mock engine (`--model mock`): next token = keyed hash of the context."""

    mock_step_us: Count = 0
    """Time of one decode step."""
    mock_max_model_len: Annotated[int, Meta(ge=16, le=MAX_MODEL_LEN)] = 2048
    """Context length of the mock model."""
    mock_eos_bias: float = 0.0
    """Added to the logit of end-of-text: raises or lowers how soon texts end."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All sections."""

    model: ModelSection = ModelSection()
    device: DeviceSection = DeviceSection()
    scheduler: SchedulerSection = SchedulerSection()
    pools: PoolSection = PoolSection()
    server: ServerSection = ServerSection()
    http: HttpSection = HttpSection()
    mock: MockSection = MockSection()
