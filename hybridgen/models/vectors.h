/* Vectors of LANES floats, for the kernels. GCC's vector extensions, no intrinsics: the same
 * source serves every instruction set. */
#ifndef HYBRIDGEN_VECTORS_H
#define HYBRIDGEN_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define HALF_VECTORS (16 / LANES) /* vectors that hold 16 floats */

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));
typedef uint32_t vuint __attribute__((vector_size(LANES * 4)));
typedef uint16_t vhalf __attribute__((vector_size(LANES * 2)));

INLINE vfloat load(const float *from)
{
    vfloat v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, vfloat v)
{
    memcpy(to, &v, sizeof v);
}

INLINE vfloat splat(float value)
{
    return value - (vfloat){}; /* x − 0 is x for every x, so no subtraction is left of it */
}

/* LANES bfloat16 numbers: a bfloat16 is the upper half of a float32. */
INLINE vfloat load_bfloat16(const uint16_t *from)
{
    vhalf h;
    memcpy(&h, from, sizeof h);
    return (vfloat)(__builtin_convertvector(h, vuint) << 16);
}

INLINE vfloat load_as(int dtype, const void *from, int64_t index)
{
    return dtype == HG_BFLOAT16 ? load_bfloat16((const uint16_t *)from + index)
                                : load((const float *)from + index);
}

/* Round to nearest, ties to even; NaN stays NaN. */
INLINE uint16_t to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(value == value ? rounded : 0x7fc0u);
}

INLINE void store_as(int dtype, void *to, int64_t index, float value)
{
    if (dtype == HG_BFLOAT16)
        ((uint16_t *)to)[index] = to_bfloat16(value);
    else
        ((float *)to)[index] = value;
}

INLINE vfloat select_lanes(vint mask, vfloat yes, vfloat no)
{
    return (vfloat)((mask & (vint)yes) | (~mask & (vint)no));
}

INLINE vfloat maximum(vfloat a, vfloat b)
{
    return select_lanes(a > b, a, b);
}

/* In a fixed order, so that a sum does not depend on how the compiler shuffles. */
INLINE float sum_lanes(vfloat v)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
}

INLINE float max_lanes(vfloat v)
{
    float max = v[0];
    for (int i = 1; i < LANES; i++)
        max = v[i] > max ? v[i] : max;
    return max;
}

/* e^x, about 2 ulp: x = n ln 2 + r, |r| ≤ ln 2 / 2, e^r by its Taylor series to r⁷ (error below
 * 1e-8), ln 2 in two parts (Cody & Waite 1980). Clamped to the range of normal floats; NaN stays
 * NaN, which the sampler turns into an error of that request. */
INLINE vfloat exponential(vfloat x)
{
    const vfloat magic = splat(12582912.0f); /* 1.5 · 2²³: adding it rounds to an integer */
    vfloat clamped = select_lanes(x < -87.0f, splat(-87.0f), x);
    clamped = select_lanes(clamped > 88.0f, splat(88.0f), clamped);
    vfloat shifted = clamped * 1.44269504088896341f + magic;
    vfloat n = shifted - magic;
    vfloat r = clamped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vfloat p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vint exponent = ((vint)shifted - (vint)magic + 127) << 23;
    return p * (vfloat)exponent;
}

/* tanh x, about 3 ulp: near 0 the seventh convergent of its continued fraction (Lambert 1761),
 * elsewhere 1 − 2 / (e^2x + 1), which would lose digits near 0. */
INLINE vfloat hyperbolic_tangent(vfloat x)
{
    vfloat s = x * x;
    vfloat above = x * (((s + 378.0f) * s + 17325.0f) * s + 135135.0f);
    vfloat below = ((s * 28.0f + 3150.0f) * s + 62370.0f) * s + 135135.0f;
    vint is_near = (x < 1.0f) & (x > -1.0f);
    return select_lanes(is_near, above / below, 1.0f - 2.0f / (exponential(x + x) + 1.0f));
}

INLINE vfloat soft_cap(vfloat x, float cap)
{
    return cap * hyperbolic_tangent(x / cap);
}

#endif
