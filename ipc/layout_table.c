/* The offsets and sizes of layout.h as Python sees them, for the test that compares both sides. */
#include "ipc/layout_table.h"

#include "ipc/layout.h"

struct entry {
    const char *name;
    size_t value;
};

#define SIZE(type) {#type, sizeof(struct type)}
#define FIELD(type, field) {#type "." #field, offsetof(struct type, field)}
#define CONSTANT(name) {#name, (size_t)(name)}

static const struct entry ENTRIES[] = {
    CONSTANT(HG_MAGIC), CONSTANT(HG_LAYOUT_VERSION), CONSTANT(HG_RECORDS_OFFSET),
    CONSTANT(HG_POISON), CONSTANT(HG_SLOTS), CONSTANT(HG_TOKENS), CONSTANT(HG_LOGITS),
    CONSTANT(HG_SAMPLED), CONSTANT(HG_LOGPROBS), CONSTANT(HG_BOARD), CONSTANT(HG_RING),
    CONSTANT(HG_MAX_EOS_IDS), CONSTANT(HG_MAX_STOP_IDS), CONSTANT(HG_MAX_BIAS),
    CONSTANT(HG_MAX_STOP_STRINGS), CONSTANT(HG_STOP_BYTES), CONSTANT(HG_STOP_REGEX_BYTES),
    CONSTANT(HG_SLOT_BYTES),
    CONSTANT(HG_GRAMMAR_BYTES), CONSTANT(HG_ROW_GRAMMAR_SPENT),
    CONSTANT(HG_LATEST_OFFSET), CONSTANT(HG_ANNOUNCED_OFFSET), CONSTANT(HG_ROW_OK), CONSTANT(HG_ROW_INVALID_LOGITS),
    CONSTANT(HG_ROW_FINISHED), CONSTANT(HG_ROW_STALE), CONSTANT(HG_ROW_NO_TOKEN),
    CONSTANT(HG_ROW_HAS_CUT), CONSTANT(HG_ROW_HAS_TOKEN), CONSTANT(HG_CUT_NONE),
    CONSTANT(HG_CUT_CANDIDATES), CONSTANT(HG_CUT_TOKEN), CONSTANT(HG_CUT_BYTES(0)),
    CONSTANT(HG_CUT_BYTES(8)), CONSTANT(HG_MAX_LOGPROBS), CONSTANT(HG_NUM_COUNTERS),
    CONSTANT(HG_NUM_HISTOGRAMS), CONSTANT(HG_NUM_BUCKETS),

    SIZE(hg_header), FIELD(hg_header, magic), FIELD(hg_header, layout_version),
    FIELD(hg_header, kind), FIELD(hg_header, size_bytes), FIELD(hg_header, instance),
    FIELD(hg_header, epoch), FIELD(hg_header, geometry),

    SIZE(hg_bias), FIELD(hg_bias, token_id), FIELD(hg_bias, value),

    SIZE(hg_sampling), FIELD(hg_sampling, temperature), FIELD(hg_sampling, top_p),
    FIELD(hg_sampling, min_p), FIELD(hg_sampling, repetition_penalty),
    FIELD(hg_sampling, presence_penalty), FIELD(hg_sampling, frequency_penalty),
    FIELD(hg_sampling, top_k), FIELD(hg_sampling, min_tokens), FIELD(hg_sampling, seed),
    FIELD(hg_sampling, num_logprobs), FIELD(hg_sampling, ignore_eos),
    FIELD(hg_sampling, num_eos_ids), FIELD(hg_sampling, num_stop_ids),
    FIELD(hg_sampling, num_bias), FIELD(hg_sampling, num_stop_strings),
    FIELD(hg_sampling, eos_ids), FIELD(hg_sampling, stop_ids), FIELD(hg_sampling, bias),
    FIELD(hg_sampling, stop_lengths), FIELD(hg_sampling, include_stop),
    FIELD(hg_sampling, skip_special_tokens), FIELD(hg_sampling, grammar_kind),
    FIELD(hg_sampling, grammar_bytes), FIELD(hg_sampling, stop_bytes),
    FIELD(hg_sampling, stop_regex_bytes), FIELD(hg_sampling, stop_regex),

    SIZE(hg_slot), FIELD(hg_slot, state), FIELD(hg_slot, epoch), FIELD(hg_slot, prompt_len),
    FIELD(hg_slot, max_len), FIELD(hg_slot, end_reason), FIELD(hg_slot, end_error),
    FIELD(hg_slot, detokenizer), FIELD(hg_slot, tokenizer), FIELD(hg_slot, client_id),
    FIELD(hg_slot, request_id), FIELD(hg_slot, arrival_ns), FIELD(hg_slot, deadline_ns),
    FIELD(hg_slot, priority), FIELD(hg_slot, deaths), FIELD(hg_slot, generated),
    FIELD(hg_slot, finish), FIELD(hg_slot, stop),
    FIELD(hg_slot, sampling),

    SIZE(hg_step), FIELD(hg_step, ready), FIELD(hg_step, num_rows), FIELD(hg_step, whole),
    SIZE(hg_row), FIELD(hg_row, slot), FIELD(hg_row, lane), FIELD(hg_row, epoch),
    FIELD(hg_row, position), FIELD(hg_row, detokenizer), FIELD(hg_row, flags),
    SIZE(hg_cut), FIELD(hg_cut, state), FIELD(hg_cut, count), FIELD(hg_cut, token_id),
    FIELD(hg_cut, top), FIELD(hg_cut, threshold), FIELD(hg_cut, scale), FIELD(hg_cut, total),
    FIELD(hg_cut, step), FIELD(hg_cut, urgent),
    SIZE(hg_lane), FIELD(hg_lane, done),
    SIZE(hg_sampled), FIELD(hg_sampled, token_id), FIELD(hg_sampled, flags),
    FIELD(hg_sampled, logprob),
    SIZE(hg_logprob), FIELD(hg_logprob, generated_index), FIELD(hg_logprob, token_id),
    FIELD(hg_logprob, logprob), FIELD(hg_logprob, num_top), FIELD(hg_logprob, top),
    SIZE(hg_process), FIELD(hg_process, pid), FIELD(hg_process, start_ticks),
    FIELD(hg_process, role), FIELD(hg_process, index), FIELD(hg_process, incarnation),
    FIELD(hg_process, state), FIELD(hg_process, progress), FIELD(hg_process, busy_until_ns),
    FIELD(hg_process, counters), FIELD(hg_process, progress_ns), FIELD(hg_process, beats),
    FIELD(hg_process, serving), FIELD(hg_process, stands_still), FIELD(hg_process, histograms),
    SIZE(hg_histogram), FIELD(hg_histogram, sum),
    SIZE(hg_ring), FIELD(hg_ring, head), FIELD(hg_ring, tail),
};

PyObject *hg_layout(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *table = PyDict_New();
    if (table == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof(ENTRIES) / sizeof(ENTRIES[0]); i++) {
        PyObject *value = PyLong_FromSize_t(ENTRIES[i].value);
        if (value == NULL || PyDict_SetItemString(table, ENTRIES[i].name, value) != 0) {
            Py_XDECREF(value);
            Py_DECREF(table);
            return NULL;
        }
        Py_DECREF(value);
    }
    return table;
}
