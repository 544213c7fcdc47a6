/* What every CPU of the architecture has: vectors of 4 floats (SSE2, NEON). */
#define LANES 4
#define TILE 1
#define KERNELS hg_kernels_baseline
#define KERNELS_NAME "baseline"
#include "hybridgen/models/kernels.h"
