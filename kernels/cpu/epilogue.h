// SPDX-License-Identifier: Apache-2.0
// kernels/cpu/epilogue.h - a node's post ops as our own kernels apply them: to a few rows of a
// result that is seen as a matrix, while they are in the cache.
#ifndef HTH_KERNELS_CPU_EPILOGUE_H
#define HTH_KERNELS_CPU_EPILOGUE_H

#include "graph/graph.h"

// Element (i, j) has its operand at offset(i) + j * col; offset counts row i in dimensions size[],
// outermost first, with distances step[].
typedef struct hth_epilogue_step {
    hth_op op;
    float alpha, beta;
    int input; // -1: unary
    int rank;
    size_t size[HTH_MAX_RANK], step[HTH_MAX_RANK], col;
    const float *operand; // of the current run
} hth_epilogue_step;

#define HTH_EPILOGUE_MAX (HTH_MAX_POST_OPS + 1)
typedef struct hth_epilogue {
    int n;
    hth_epilogue_step step[HTH_EPILOGUE_MAX];
} hth_epilogue;

// hth_epilogue_of translates the post ops of `node`, appending to what `epilogue` holds. Output 0
// and all operands are plain f32; rows are the output's last dimension. HTH_ENOTSUP names what is
// not possible.
hth_err hth_epilogue_of(const hth_graph *graph, const hth_node *node, hth_epilogue *epilogue);
// hth_epilogue_operand finds how a tensor of shape `s`, broadcast to `y`, is read for rows that
// are y's last `keep` dimensions; false: within those it is neither complete nor a single number.
bool hth_epilogue_operand(const hth_shape *s, const hth_shape *y, int keep,
                          hth_epilogue_step *step);
// hth_epilogue_offset returns where the operands of row `row` start.
size_t hth_epilogue_offset(const hth_epilogue_step *step, size_t row);
// hth_epilogue_known says whether there is such a step.
bool hth_epilogue_known(hth_op op, bool binary);
// hth_epilogue_can says whether one more post op could be translated (an oracle's can_fuse).
bool hth_epilogue_can(const hth_graph *graph, const hth_node *node, const hth_post_op *op,
                      int operand);
// hth_epilogue_bind stores where the operands are.
void hth_epilogue_bind(hth_epilogue *epilogue, void *const *in);
// hth_epilogue_apply does it to rows [row, row + rows) and columns [col, col + n), which start at
// y.
void hth_epilogue_apply(const hth_epilogue *epilogue, float *y, size_t ld, size_t row, size_t rows,
                        size_t col, size_t n);

#endif
