// SPDX-License-Identifier: Apache-2.0
// graph/follow_impl.h - what the walk of independence.c shares with follow*.c, and no rule needs.
#ifndef HTH_GRAPH_FOLLOW_IMPL_H
#define HTH_GRAPH_FOLLOW_IMPL_H

#include "graph/follow.h"

// Tensors of more elements are no shape arithmetic: their elements are not followed.
#define FOLLOW_ELEMENTS 64
// Whole numbers up to here are exact in single precision.
#define FOLLOW_WHOLE (1 << 24)

// Where a proof ended: "node 'n' (Op) <does> axis 2, which holds the samples".
typedef struct hth_reason {
    int node;
    int axis; // -1: no axis is to blame
    const char *does;
} hth_reason;

// follow_reason adds one and returns its number.
int follow_reason(hth_follow *follow, const char *does, int axis);
// follow_whole stores element k of a constant where it is a whole number that its type, and single
// precision, has exactly.
bool follow_whole(hth_dtype dt, const void *data, int64_t k, int64_t *out);

#endif
