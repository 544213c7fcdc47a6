/* See masks.h. */
#include "hybridgen/sampling/masks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define IDS_PER_WORD 64

static size_t num_words(size_t vocab) { return (vocab + IDS_PER_WORD - 1) / IDS_PER_WORD; }

int hg_masks_open(struct hg_masks *masks, size_t num_slots, size_t vocab) {
    struct hg_mask *of_slot = calloc(num_slots, sizeof *of_slot);
    *masks = (struct hg_masks){num_slots, vocab, of_slot};
    return of_slot ? 0 : -1;
}

void hg_masks_close(struct hg_masks *masks) {
    for (size_t slot = 0; masks->of_slot && slot < masks->num_slots; slot++)
        free(masks->of_slot[slot].words);
    free(masks->of_slot);
    masks->of_slot = NULL;
}

int hg_masks_set(struct hg_masks *masks, size_t slot, uint64_t epoch, uint64_t position,
                 const void *bits, size_t num_bytes) {
    struct hg_mask *mask = &masks->of_slot[slot];
    size_t most = num_words(masks->vocab) * sizeof *mask->words, rest = masks->vocab % IDS_PER_WORD;
    if (!mask->words)
        mask->words = malloc(most);
    if (!mask->words)
        return -1;
    mask->epoch = epoch;
    mask->position = position;
    mask->is_spent = bits == NULL;
    if (mask->is_spent)
        return 0;
    memset(mask->words, 0, most);
    memcpy(mask->words, bits, num_bytes < most ? num_bytes : most);
    if (rest)
        mask->words[masks->vocab / IDS_PER_WORD] &= (1ull << rest) - 1;
    return 0;
}

const struct hg_mask *hg_masks_find(const struct hg_masks *masks, size_t slot, uint64_t epoch,
                                    uint64_t position) {
    const struct hg_mask *mask = masks ? &masks->of_slot[slot] : NULL;
    int is_it = mask && mask->words && mask->epoch == epoch && mask->position == position;
    return is_it ? mask : NULL;
}

void hg_mask_row(const uint64_t *words, const float *row, size_t vocab, float *out) {
    for (size_t first = 0; first < vocab; first += IDS_PER_WORD) {
        size_t count = vocab - first < IDS_PER_WORD ? vocab - first : IDS_PER_WORD;
        uint64_t word = words[first / IDS_PER_WORD];
        if (word == UINT64_MAX) {
            memcpy(out + first, row + first, count * sizeof *out);
            continue;
        }
        for (size_t i = 0; i < count; i++)
            out[first + i] = -INFINITY;
        for (; word; word &= word - 1) {
            size_t id = first + (size_t)__builtin_ctzll(word);
            out[id] = row[id];
        }
    }
}
