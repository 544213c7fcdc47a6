/* The layout of every shared-memory segment, for native code.
 *
 * The Python views (slot_table.py, token_store.py, logit_ring.py, logprob_ring.py, board.py)
 * mirror these structures; tests compare the two field by field through layout_table.c.
 * The writer of each word stands beside it: exactly one process writes a word, and a
 * word that publishes others is stored last, with release order, and loaded with acquire order.
 *
 * All words are 8 bytes and 8-byte aligned; integers are in the machine's own byte order, since a
 * segment never leaves its machine.
 */
#ifndef HYBRIDGEN_LAYOUT_H
#define HYBRIDGEN_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define HG_MAGIC 0x4e47444952425948ull /* "HYBRIDGN" */
#define HG_LAYOUT_VERSION 1ull
#define HG_RECORDS_OFFSET 4096ull /* records start on the page after the header */
#define HG_POISON UINT64_MAX      /* in a waited-on word: stop waiting, this segment is retired */

/* Segment header.  Writer: the supervisor, before anybody else can see the segment. */
struct hg_header {
    uint64_t magic;
    uint64_t layout_version;
    uint64_t kind; /* enum hg_kind */
    uint64_t size_bytes;
    uint64_t instance; /* random number of this tree */
    uint64_t epoch;    /* incarnation of the owner; 0 for segments that outlive processes */
    uint64_t reserved[2];
    uint64_t geometry[8]; /* meaning by kind, see below */
};

enum hg_kind { HG_SLOTS = 1, HG_TOKENS, HG_LOGITS, HG_SAMPLED, HG_LOGPROBS, HG_BOARD };

/* ---- sampling parameters, inside the slot record.  Writer: coscheduler ------------------- */
#define HG_MAX_EOS_IDS 16
#define HG_MAX_STOP_IDS 64
#define HG_MAX_BIAS 512
#define HG_MAX_STOP_STRINGS 4
#define HG_STOP_BYTES 1024
#define HG_STOP_REGEX_BYTES 256

struct hg_bias {
    int32_t token_id;
    float value;
};

struct hg_sampling {
    float temperature; /* 0: greedy */
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    int32_t top_k; /* 0: all */
    int32_t min_tokens;
    uint64_t seed;
    int32_t num_logprobs; /* -1: none asked; else 0 … 20 */
    int32_t ignore_eos;
    int32_t num_eos_ids;
    int32_t num_stop_ids;
    int32_t num_bias;
    int32_t num_stop_strings;
    int32_t eos_ids[HG_MAX_EOS_IDS];
    int32_t stop_ids[HG_MAX_STOP_IDS];
    struct hg_bias bias[HG_MAX_BIAS];
    uint32_t stop_lengths[HG_MAX_STOP_STRINGS]; /* bytes of each, back to back in stop_bytes */
    uint32_t include_stop;
    uint32_t skip_special_tokens;
    uint32_t grammar_kind;  /* place in GRAMMAR_KINDS (sampling/parameters.py) + 1; 0: none */
    uint32_t grammar_bytes; /* of its text, behind the slot records */
    uint8_t stop_bytes[HG_STOP_BYTES];
    uint32_t stop_regex_bytes; /* of the pattern; 0: none */
    uint32_t regex_reserved;
    uint8_t stop_regex[HG_STOP_REGEX_BYTES]; /* UTF-8 */
};

/* ---- slots: geometry = {num_slots, slot_bytes, max_model_len} --------------------------------
 * One record per live request.  Lines of 64 bytes, so that no two writers share one.  Behind the
 * records, uint8[num_slots][HG_GRAMMAR_BYTES]: the text of each request's grammar, UTF-8.
 * Writer: coscheduler, together with the parameters. */
#define HG_SLOT_BYTES 8192ull
#define HG_GRAMMAR_BYTES 65536ull

struct hg_slot {
    /* line 0. Writer: coscheduler */
    uint64_t state;      /* enum SlotState (ipc/slot_table.py); stored last when a slot is filled */
    uint64_t epoch;      /* occupant number; differs for every request that ever held the slot */
    uint64_t prompt_len; /* tokens; 0 until the prompt is encoded */
    uint64_t max_len;    /* prompt + generated may not exceed this */
    uint64_t end_reason; /* FinishReason set from outside (cancelled, deadline, error); 0 none */
    uint64_t end_error;  /* index into errors, 0 none */
    uint64_t detokenizer; /* index of the owner */
    uint64_t tokenizer;   /* index of the owner */
    /* line 1. Writer: coscheduler */
    uint64_t client_id[2];
    uint64_t request_id[2];
    uint64_t arrival_ns;  /* CLOCK_MONOTONIC */
    uint64_t deadline_ns; /* 0 none */
    uint64_t priority;
    uint64_t deaths; /* deaths of a worker of one kind while it served this request */
    /* line 2. Writer: the sampler whose lane the current row carries */
    uint64_t generated; /* tokens generated so far; publishes tokens[prompt_len + generated - 1] */
    uint64_t finish;    /* 0, or FinishReason | enum hg_row_error << 8 | final generated << 16 */
    uint64_t line2_reserved[6];
    /* line 3. Writer: the owning detokenizer */
    uint64_t stop;      /* 0, or 1 + number of tokens up to and with the one that completed a match */
    uint64_t line3_reserved[7];
    /* line 4 on. Writer: coscheduler */
    struct hg_sampling sampling;
};

/* ---- tokens: geometry = {num_slots, max_model_len} -------------------------------------------
 * int32[num_slots][max_model_len] at HG_RECORDS_OFFSET; the index is the absolute position.
 * Writers: tokenizer below prompt_len, sampler from there on. */

/* ---- logits: geometry = {depth, max_rows, vocab_size, row_bytes, data_offset, num_lanes,
 *                          step_bytes, cut_capacity} ----------------------------------------
 * Belongs to one incarnation of the gpu process and is replaced with it.
 * Steps count from 1; step s lives at index s % depth:
 *   struct hg_step + hg_row[max_rows]  at HG_RECORDS_OFFSET + index * step_bytes
 *   float[vocab_size] of row r         at data_offset + (index * max_rows + r) * row_bytes
 *   struct hg_cut of row r             at cut_offset + (index * max_rows + r) * cut_bytes
 * with cut_offset = data_offset + depth * max_rows * row_bytes, and cut_bytes = HG_CUT_BYTES(C) for
 * C = cut_capacity, a multiple of 8; C = 0: rows have no cuts.
 */
#define HG_LATEST_OFFSET 128ull /* u64: newest published step. Writer: gpu (device or host) */
/* u64: newest step that the host gave to the device, which cannot wake a sleeper itself; 0 where
 * the host publishes.  A line of its own: the device writes the other.  Writer: gpu (host) */
#define HG_ANNOUNCED_OFFSET 192ull

struct hg_step {
    uint64_t ready; /* = s: headers and cuts (where rows have none: the rows) are there */
    uint64_t num_rows;
    uint64_t whole; /* = s: complete rows are there; stored after them.  Writer: gpu */
    uint64_t reserved[5];
};

struct hg_row { /* Writer: gpu */
    uint32_t slot;
    uint32_t lane; /* which sampler does this row */
    uint64_t epoch;
    uint64_t position; /* absolute position of the token to choose = tokens known so far */
    uint32_t detokenizer;
    uint32_t flags; /* HG_ROW_HAS_* */
};
#define HG_ROW_HAS_CUT 1u   /* the device wrote this row's cut for this step */
#define HG_ROW_HAS_TOKEN 2u /* ... with a token, which it already goes on with */

/* A row as a sampler needs it where the cut proves the answer; else it reads the whole row.
 * Behind the 64 bytes: float value[C], int32_t id[C], of every id whose logit is at least
 * `threshold`, in ascending order of ids.  Writer: gpu (device), before `ready`; of `urgent`
 * after it. */
struct hg_cut {
    uint32_t state;  /* HG_CUT_*, below */
    uint32_t count;  /* candidates */
    int32_t token_id;
    float top;       /* the largest logit */
    float threshold; /* at most `top` */
    float scale;     /* log2(e) / temperature, 0 when greedy */
    double total;    /* sum of the weights of all logits at that scale; 0 when greedy */
    uint64_t step;   /* = s */
    /* = s: the complete row is there before the others, stored after it; for the cut does not
     * decide the token, or the row has none, and then nothing else of this record counts. */
    uint64_t urgent;
    uint64_t reserved[2];
};
#define HG_CUT_NONE 0u       /* an invalid row, or too many candidates */
#define HG_CUT_CANDIDATES 1u
#define HG_CUT_TOKEN 2u      /* token_id is the device's choice; there may be no candidates */
#define HG_CUT_BYTES(capacity) (64ull + 8ull * (capacity))

/* ---- sampled: geometry = {depth, max_rows, num_lanes, step_bytes} ----------------------------
 * Belongs to the same incarnation as the logits.  Per step index:
 *   hg_lane[num_lanes] then hg_sampled[max_rows]  at HG_RECORDS_OFFSET + index * step_bytes */
struct hg_lane {
    uint64_t done; /* = s, stored last.  Writer: the sampler of that lane */
    uint64_t reserved[7];
};

struct hg_sampled { /* Writer: the sampler of the row's lane */
    int32_t token_id;
    uint32_t flags;
    float logprob;
    uint32_t reserved;
};
enum hg_row_error { HG_ROW_OK = 0, HG_ROW_INVALID_LOGITS = 1, HG_ROW_GRAMMAR_SPENT = 2 };
#define HG_ROW_FINISHED 1u /* last token of its request, or no token at all: take the row out */
#define HG_ROW_STALE 2u    /* the slot has another occupant by now: nothing was written */
#define HG_ROW_NO_TOKEN 4u /* finished without a token (stopped, or invalid logits) */

/* ---- logprobs: geometry = {num_slots, depth} -------------------------------------------------
 * hg_logprob[num_slots][depth]; the record of generated token i is at i % depth.  Writer: the
 * sampler of the row.  Published by the slot's `generated` word; a reader that finds another
 * number in `generated_index` came too late. */
#define HG_MAX_LOGPROBS 20
struct hg_logprob {
    uint64_t generated_index;
    int32_t token_id;
    float logprob;
    uint32_t num_top;
    uint32_t reserved;
    struct hg_bias top[HG_MAX_LOGPROBS]; /* token id, log-probability; best first */
    uint64_t reserved2;
};

/* ---- board: geometry = {num_processes} -------------------------------------------------------
 * One record per process, that process the only writer (the supervisor before it starts) of all
 * but one word, which stands in a line of its own. */
#define HG_NUM_COUNTERS 32
#define HG_NUM_BUCKETS 31
#define HG_NUM_HISTOGRAMS 14
struct hg_histogram {
    uint64_t buckets[HG_NUM_BUCKETS]; /* not cumulative; bounds by role: ipc/histogram.py */
    uint64_t sum;                     /* of all values, in the unit of the bounds */
};
struct hg_process {
    uint64_t pid;
    uint64_t start_ticks; /* field 22 of /proc/pid/stat: pid + start time name a process */
    uint64_t role;        /* enum Role (ipc/board.py) */
    uint64_t index;
    uint64_t incarnation;
    uint64_t state; /* enum ProcessState (ipc/board.py) */
    uint64_t progress;      /* turns of the process's own loop that did something */
    uint64_t busy_until_ns; /* CLOCK_MONOTONIC; a hang is judged only past this */
    uint64_t counters[HG_NUM_COUNTERS]; /* meaning by role: ipc/board.py */
    uint64_t progress_ns;   /* CLOCK_MONOTONIC of the last such turn, or of the process's start */
    uint64_t beats;         /* turns of the loop, idle ones too: at least one a second */
    uint64_t serving;       /* slot + 1 << 48 | low 48 bits of its epoch; 0: nobody in particular */
    uint64_t reserved[5];
    uint64_t stands_still;  /* Writer: supervisor. 1: judged to hang (launch/hang_watch.py) */
    uint64_t reserved_line[15];
    struct hg_histogram histograms[HG_NUM_HISTOGRAMS];
};

_Static_assert(sizeof(struct hg_header) == 128, "header is two lines");
_Static_assert(offsetof(struct hg_slot, generated) == 128, "sampler's line");
_Static_assert(offsetof(struct hg_slot, stop) == 192, "detokenizer's line");
_Static_assert(offsetof(struct hg_slot, sampling) == 256, "parameters start a line");
_Static_assert(sizeof(struct hg_slot) <= HG_SLOT_BYTES, "slot record fits");
_Static_assert(sizeof(struct hg_step) == 64, "one line");
_Static_assert(sizeof(struct hg_row) == 32, "row header");
_Static_assert(sizeof(struct hg_cut) == 64, "one line");
_Static_assert(sizeof(struct hg_sampled) == 16, "sampled record");
_Static_assert(sizeof(struct hg_logprob) == 192, "three lines");
_Static_assert(sizeof(struct hg_process) == 4096, "one page");

#endif
