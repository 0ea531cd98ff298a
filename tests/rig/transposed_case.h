// SPDX-License-Identifier: Apache-2.0
// tests/rig/transposed_case.h - transposed convolutions whose pads follow from the result's length.
// For CUDA's kernels, their fixture.h is included before.
#ifndef HTH_TESTS_RIG_TRANSPOSED_CASE_H
#define HTH_TESTS_RIG_TRANSPOSED_CASE_H

#include "kernels/cpu/fixture.h"

#define TRANSPOSED_CASES 7

// Case `i`: 6 positions with a stride of 2 and a window of 3 make 13, and `extra` more.
static inline void transposed_open(fixture *f, size_t i)
{
    static const struct {
        const char *mode;
        int64_t given, extra, out;
    } list[TRANSPOSED_CASES] = {{"NOTSET", 10, 0, 10},    {"NOTSET", 11, 1, 11},
                                {"NOTSET", 13, 0, 13},    {"SAME_UPPER", 10, 0, 10},
                                {"SAME_UPPER", 0, 1, 12}, {"SAME_LOWER", 0, 1, 12},
                                {"NOTSET", 17, 0, 17}};
    const int64_t given[2] = {list[i].given, list[i].given},
                  extra[2] = {list[i].extra, list[i].extra}, strides[2] = {2, 2};
    fixture_open(f, 20 + i);
    int in[3] = {fixture_value(f, SHAPE(2, 16, 6, 6)), fixture_const(f, SHAPE(16, 24, 3, 3)),
                 fixture_const(f, SHAPE(24))};
    int out = fixture_value(f, SHAPE(2, 24, list[i].out, list[i].out));
    hth_node *n = fixture_node(f, HTH_OP_CONV_TRANSPOSE, in, 3, &out, 1);
    hth_node_set_str(n, "auto_pad", list[i].mode);
    hth_node_set_ints(n, "strides", strides, 2);
    hth_node_set_ints(n, "output_padding", extra, 2);
    if (list[i].given > 0) {
        hth_node_set_ints(n, "output_shape", given, 2);
    }
}

#endif
