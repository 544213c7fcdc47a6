/* AVX-512: 32 registers of 16 floats hold 12 rows × 32 outputs and the weights. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define LANES 16
#define TILE 12
#define KERNELS hg_kernels_avx512
#define KERNELS_NAME "avx512"
#include "hybridgen/models/kernels.h"
#endif
