// SPDX-License-Identifier: Apache-2.0
#include "graph/op.h"

#include <stddef.h>
#include <string.h>

// The since-versions of one operator, as an array of their own so that rows can have any length.
#define OP_SINCE(e, name, a, b, c, d, ...) static const int op_since_##e[] = {__VA_ARGS__};
HTH_ONNX_OPS(OP_SINCE)

#define OP_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define OP_ROW(e, name, a, b, c, d, ...)                                                           \
    [HTH_OP_##e] = {name, a, b, c, d, OP_COUNT(op_since_##e), op_since_##e},
#define OP_OWN_ROW(e, name, a, b, c, d) [HTH_OP_##e] = {name, a, b, c, d, 0, NULL},

static const hth_op_info op_table[HTH_N_OPS] = {
    [HTH_OP_NONE] = {"None", 0, 0, 0, 0, 0, NULL},
    // clang-format off
    HTH_ONNX_OPS(OP_ROW)
    HTH_OWN_OPS(OP_OWN_ROW)
    // clang-format on
};

const hth_op_info *hth_op_info_of(hth_op op)
{
    return &op_table[(unsigned)op < HTH_N_OPS ? op : HTH_OP_NONE];
}

hth_op hth_op_find(const char *name)
{
    for (int op = 1; op < HTH_N_OPS; op++) {
        if (op_table[op].n_since > 0 && strcmp(op_table[op].name, name) == 0) {
            return (hth_op)op;
        }
    }
    return HTH_OP_NONE;
}
