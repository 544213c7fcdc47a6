/* One allocation per thread and vocabulary; pages of it that no row needs are never touched. */
#include "hybridgen/sampling/scratch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct hg_scratch *this_thread;
static pthread_key_t at_exit;
static pthread_once_t at_exit_once = PTHREAD_ONCE_INIT;

static void scratch_free(void *pointer) {
    struct hg_scratch *scratch = pointer;
    free(scratch->memory);
    free(scratch);
}

static void make_key(void) { pthread_key_create(&at_exit, scratch_free); }

/* Hand out `count` items of `size` bytes on a cache line of their own; with no memory yet, only
 * add up what will be needed. */
static void *take(char *memory, size_t *offset, size_t count, size_t size) {
    void *start = memory ? memory + *offset : NULL;
    *offset += (count * size + 63) / 64 * 64;
    return start;
}

static size_t divide(struct hg_scratch *s, char *memory, size_t vocab) {
    size_t num_chunks = (vocab + HG_CHUNK - 1) / HG_CHUNK;
    size_t num_blocks = num_chunks * HG_BLOCKS_PER_CHUNK + 64, padded = vocab + 2 * HG_CHUNK;
    size_t offset = 0;
    s->touched = take(memory, &offset, num_blocks, sizeof *s->touched);
    s->seen = take(memory, &offset, num_blocks, sizeof *s->seen);
    s->block_max = take(memory, &offset, num_blocks, sizeof *s->block_max);
    s->rank = take(memory, &offset, num_blocks, sizeof *s->rank);
    s->sum = take(memory, &offset, num_chunks + 2, sizeof *s->sum);
    s->touched_id = take(memory, &offset, padded, sizeof *s->touched_id);
    s->bias = take(memory, &offset, padded, sizeof *s->bias);
    s->adjusted = take(memory, &offset, padded, sizeof *s->adjusted);
    s->original = take(memory, &offset, padded, sizeof *s->original);
    s->count = take(memory, &offset, padded, sizeof *s->count);
    s->value = take(memory, &offset, padded, sizeof *s->value);
    s->weight = take(memory, &offset, padded, sizeof *s->weight);
    s->part_weight = take(memory, &offset, padded, sizeof *s->part_weight);
    s->id = take(memory, &offset, padded, sizeof *s->id);
    s->key = take(memory, &offset, padded, sizeof *s->key);
    s->masked = take(memory, &offset, padded, sizeof *s->masked);
    return offset;
}

static int scratch_size(struct hg_scratch *s, size_t vocab) {
    size_t need = divide(s, NULL, vocab);
    char *memory = NULL;
    if (posix_memalign((void **)&memory, 64, need))
        return -1;
    free(s->memory);
    s->memory = memory;
    s->vocab = vocab;
    divide(s, memory, vocab);
    size_t num_words = (size_t)((char *)s->block_max - memory);
    memset(memory, 0, num_words); /* both bitmaps */
    return 0;
}

struct hg_scratch *hg_scratch_get(size_t vocab) {
    struct hg_scratch *s = this_thread;
    if (s && s->vocab >= vocab)
        return s;
    pthread_once(&at_exit_once, make_key);
    if (!s) {
        s = calloc(1, sizeof *s);
        if (!s)
            return NULL;
        if (pthread_setspecific(at_exit, s)) {
            free(s);
            return NULL;
        }
        this_thread = s;
    }
    return scratch_size(s, vocab) ? NULL : s;
}
