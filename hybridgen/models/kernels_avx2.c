/* AVX2 + FMA: 16 registers of 8 floats hold 3 rows × 32 outputs. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#define LANES 8
#define TILE 3
#define KERNELS hg_kernels_avx2
#define KERNELS_NAME "avx2"
#include "hybridgen/models/kernels.h"
#endif
