/* Blocks of stored elements → floats: layouts and formulas of the GGUF specification.
 *
 * No product here is rounded: a half has 11 significant bits, and what it is multiplied with has
 * at most 13 together (the scale and the element of a K-quant). So a value is rounded once, in its
 * sum if it has one, and is the same whether or not the compiler fuses the two. */

/* Floats that are worked on at once: they stay in the nearest cache. */
#define PIECE 1024

INLINE float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* Without a branch, which would keep the compiler from making vectors of it. */
INLINE uint32_t choose(int is_first, uint32_t first, uint32_t second)
{
    return second ^ ((first ^ second) & -(uint32_t)is_first);
}

INLINE uint32_t halfword_at(const uint8_t *from)
{
    uint16_t bits;
    memcpy(&bits, from, 2);
    return bits;
}

INLINE float half_at(const uint8_t *from)
{
    uint32_t half = halfword_at(from), magnitude = half & 0x7fff;
    uint32_t subnormal = bits_of((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = (magnitude << 13) + (112u << 23);
    bits += choose(magnitude >= 0x7c00, 112u << 23, 0); /* infinite, or not a number */
    return float_of(choose(magnitude < 0x400, subnormal, bits) | (half & 0x8000) << 16);
}

/* Round to nearest, ties to even; what is too large becomes infinite. */
INLINE uint16_t to_half(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    /* In the sum with 0.5, the last bit is worth as much as that of a subnormal half. */
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    half = choose(magnitude < 113u << 23, subnormal, half);
    half = choose(magnitude < 143u << 23, half, 0x7c00);
    half = choose(magnitude > 0x7f800000, 0x7e00, half);
    return (uint16_t)(half | (bits >> 16 & 0x8000));
}

static void read_F32(const uint8_t *from, float *to, int64_t count)
{
    memcpy(to, from, (size_t)count * 4);
}

static void read_F16(const uint8_t *from, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = half_at(from + 2 * i);
}

static void read_BF16(const uint8_t *from, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = float_of(halfword_at(from + 2 * i) << 16);
}

/* d · (q − zero) + m; 16 bytes hold the low bits of elements i and 16 + i, bit i of `high` the
 * fifth bit of element i. Adding m = −0 changes nothing, not even the sign of a zero. */
INLINE void read_32(const uint8_t *low, uint32_t high, float d, int zero, float m, float *to)
{
    for (int i = 0; i < 16; i++) {
        int first = (low[i] & 15) | (int)(high >> i & 1) << 4;
        int second = low[i] >> 4 | (int)(high >> (16 + i) & 1) << 4;
        to[i] = d * (float)(first - zero) + m;
        to[16 + i] = d * (float)(second - zero) + m;
    }
}

INLINE uint32_t word_at(const uint8_t *from)
{
    uint32_t word;
    memcpy(&word, from, 4);
    return word;
}

static void read_Q4_0(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 18, to += 32)
        read_32(from + 2, 0, half_at(from), 8, -0.0f, to);
}

static void read_Q4_1(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 20, to += 32)
        read_32(from + 4, 0, half_at(from), 0, half_at(from + 2), to);
}

static void read_Q5_0(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 22, to += 32)
        read_32(from + 6, word_at(from + 2), half_at(from), 16, -0.0f, to);
}

static void read_Q5_1(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 24, to += 32)
        read_32(from + 8, word_at(from + 4), half_at(from), 0, half_at(from + 2), to);
}

static void read_Q8_0(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 34, to += 32) {
        float d = half_at(from);
        for (int i = 0; i < 32; i++)
            to[i] = d * (float)(int8_t)from[2 + i];
    }
}

/* K-quants: 256 elements are 8 groups of 32, or 16 of 16, with a scale each. Bytes of `low` hold
 * two bits of element i of four groups; a half of the block has its own 32 bytes. */

/* scales and minimums of 4 bits [16] · low [64] · halfs d, dmin */
static void read_Q2_K(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 84, to += 256) {
        float d = half_at(from + 80), least = half_at(from + 82);
        for (int group = 0; group < 16; group++) {
            const uint8_t *low = from + 16 + group / 8 * 32 + group % 2 * 16;
            float scale = d * (float)(from[group] & 15), m = least * (float)(from[group] >> 4);
            int shift = group % 8 / 2 * 2;
            for (int i = 0; i < 16; i++)
                to[group * 16 + i] = scale * (float)(low[i] >> shift & 3) - m;
        }
    }
}

/* third bits, those of group g in bit g of 32 bytes · low [64] · scales of 6 bits · half d */
static void read_Q3_K(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 110, to += 256) {
        const uint8_t *scales = from + 96;
        float d = half_at(from + 108);
        for (int group = 0; group < 16; group++) {
            const uint8_t *high = from + group % 2 * 16;
            const uint8_t *low = from + 32 + group / 8 * 32 + group % 2 * 16;
            int nibble = scales[group % 8] >> group / 8 * 4 & 15;
            int scale = nibble | (scales[8 + group % 4] >> group / 4 * 2 & 3) << 4;
            float step = d * (float)(scale - 32);
            int shift = group % 8 / 2 * 2;
            for (int i = 0; i < 16; i++) {
                int q = (low[i] >> shift & 3) | (high[i] >> group / 2 & 1) << 2;
                to[group * 16 + i] = step * (float)(q - 4);
            }
        }
    }
}

/* halfs d, dmin · 8 scales and 8 minimums of 6 bits · fifth bits, if any, those of group g in bit g
 * of 32 bytes · nibbles of two groups in 32 bytes */
INLINE void read_256(const uint8_t *from, const uint8_t *high, const uint8_t *low, float *to)
{
    const uint8_t *scales = from + 4;
    float d = half_at(from), least = half_at(from + 2);
    for (int group = 0; group < 8; group++) {
        int scale = scales[group] & 63, minimum = scales[(group + 4) % 12] & 63;
        if (group >= 4) {
            scale = (scales[group + 4] & 15) | scales[group - 4] >> 6 << 4;
            minimum = scales[group + 4] >> 4 | scales[group] >> 6 << 4;
        }
        float step = d * (float)scale, m = least * (float)minimum;
        const uint8_t *nibbles = low + group / 2 * 32;
        for (int i = 0; i < 32; i++) {
            int q = (nibbles[i] >> group % 2 * 4 & 15) | (high ? high[i] >> group & 1 : 0) << 4;
            to[group * 32 + i] = step * (float)q - m;
        }
    }
}

static void read_Q4_K(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 144, to += 256)
        read_256(from, NULL, from + 16, to);
}

static void read_Q5_K(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 176, to += 256)
        read_256(from, from + 16, from + 48, to);
}

/* nibbles of two groups, 64 apart, in 64 bytes · high bits as `low` · int8 scales · half d */
static void read_Q6_K(const uint8_t *from, float *to, int64_t count)
{
    for (; count--; from += 210, to += 256) {
        float d = half_at(from + 208);
        for (int group = 0; group < 16; group++) {
            const uint8_t *nibbles = from + group / 8 * 64 + group % 4 * 16;
            const uint8_t *high = from + 128 + group / 8 * 32 + group % 2 * 16;
            float step = d * (float)(int8_t)from[192 + group];
            int shift = group % 8 / 2 * 2;
            for (int i = 0; i < 16; i++) {
                int q = (nibbles[i] >> group % 8 / 4 * 4 & 15) | (high[i] >> shift & 3) << 4;
                to[group * 16 + i] = step * (float)(q - 32);
            }
        }
    }
}

#define READER(name, size, bytes) read_##name,
static void (*const readers[])(const uint8_t *, float *, int64_t) = {HG_ELEMENTS(READER)};

static void write_floats(const float *from, int64_t count, int64_t element, void *to)
{
    if (element == HG_BF16)
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = to_bfloat16(from[i]);
    else if (element == HG_F16)
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = to_half(from[i]);
    else
        memcpy(to, from, (size_t)count * 4);
}

static float convert(const struct hg_conversion *op)
{
    const struct hg_element from = hg_elements[op->from_element];
    const struct hg_element to = hg_elements[op->to_element];
    const int64_t step = PIECE / from.size;
    uint32_t largest = 0;
    for (int64_t block = 0; block < op->num_blocks; block += step) {
        int64_t left = op->num_blocks - block, num_blocks = left < step ? left : step;
        int64_t count = num_blocks * from.size;
        float piece[PIECE];
        readers[op->from_element](op->from + block * from.bytes, piece, num_blocks);
        /* Magnitudes are in the order of their bits, and NaN comes after infinity. */
        for (int64_t i = 0; i < count; i++) {
            uint32_t magnitude = bits_of(piece[i]) & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
        write_floats(piece, count, op->to_element, op->to + block * from.size * to.bytes);
    }
    return float_of(largest);
}
