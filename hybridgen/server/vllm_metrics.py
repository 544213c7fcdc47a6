"""The metrics that vLLM has, too, under its names, so that dashboards made for it show HybridGen.

Names and labels: https://docs.vllm.ai/en/stable/usage/metrics/ and, of those that older
dashboards still ask for, the same page of release 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from hybridgen.server.board_reading import Reading
from hybridgen.server.metric import Labelled, MetricSpec, make_family
from hybridgen.server.metric_table import METRICS

#: vLLM's name → ours, both as families (a counter without ``_total``).
ALIASES = {
    "vllm:num_requests_running": "hybridgen_requests_running",
    "vllm:num_requests_waiting": "hybridgen_requests_waiting",
    "vllm:kv_cache_usage_perc": "hybridgen_kv_cache_usage_ratio",
    "vllm:gpu_cache_usage_perc": "hybridgen_kv_cache_usage_ratio",  # until 0.9
    "vllm:num_preemptions": "hybridgen_preemptions",
    "vllm:prefix_cache_queries": "hybridgen_prefix_cache_queries",
    "vllm:prefix_cache_hits": "hybridgen_prefix_cache_hits",
    "vllm:prompt_tokens": "hybridgen_prompt_tokens",
    "vllm:generation_tokens": "hybridgen_generated_tokens",
    "vllm:request_success": "hybridgen_requests_finished",
    "vllm:request_prompt_tokens": "hybridgen_request_prompt_tokens",
    "vllm:request_generation_tokens": "hybridgen_request_generated_tokens",
    "vllm:time_to_first_token_seconds": "hybridgen_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "hybridgen_inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds": "hybridgen_inter_token_latency_seconds",  # until 0.10
    "vllm:e2e_request_latency_seconds": "hybridgen_e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds": "hybridgen_request_queue_time_seconds",
    "vllm:request_prefill_time_seconds": "hybridgen_request_prefill_time_seconds",
    "vllm:request_decode_time_seconds": "hybridgen_request_decode_time_seconds",
}
_LABELS = ("model_name", "engine")
_RENAMED_LABELS = {"reason": "finished_reason"}
_RENAMED_VALUES = {"cancelled": "abort"}
_OURS = {spec.name: spec for spec in METRICS}


def vllm_families(reading: Reading, model: str) -> Iterator[Metric]:
    """All aliases, labelled as vLLM labels them: with the model's name and engine 0."""
    for name, ours in ALIASES.items():
        spec = _OURS[ours]
        labels = (*_LABELS, *(_RENAMED_LABELS[label] for label in spec.labels))
        values = [_relabelled(labelled, model) for labelled in spec.read(reading)]
        yield make_family(name, spec.kind, _meaning(spec), labels, values)


def _relabelled(labelled: Labelled, model: str) -> Labelled:
    label_values, value = labelled
    renamed: Sequence[str] = [_RENAMED_VALUES.get(label, label) for label in label_values]
    return (model, "0", *renamed), value


def _meaning(spec: MetricSpec) -> str:
    return f"The same as {spec.exposed_name}."
