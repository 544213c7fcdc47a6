/* Body of one kernel variant: LANES, TILE and KERNELS are set by the including file. */
#include "hybridgen/models/ops.h"
#include "hybridgen/models/vectors.h"

#include "hybridgen/models/attention_kernel.h"
#include "hybridgen/models/dequantize_kernel.h"
#include "hybridgen/models/linear_kernel.h"
#include "hybridgen/models/row_kernel.h"

const struct hg_kernels KERNELS = {
    .name = KERNELS_NAME,
    .linear_panel = linear_panel,
    .norm_row = norm_row,
    .rotate_token = rotate_token,
    .attend_tile = attend_tile,
    .tile = TILE,
    .convert = convert,
};
