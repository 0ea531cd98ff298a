// SPDX-License-Identifier: Apache-2.0
// graph/transposed.h - the pads of a ConvTranspose whose result has a length that is given.
#ifndef HTH_GRAPH_TRANSPOSED_H
#define HTH_GRAPH_TRANSPOSED_H

#include "graph/graph.h"

#include <string.h>

// hth_transposed_pads stores the pads of spatial axis `i`, if they follow from the result's length
// `out` (output_shape, or auto_pad SAME): `whole` is the length without pads and output_padding.
// false: they do not.
static inline bool hth_transposed_pads(const hth_node *node, int i, int64_t whole, int64_t out,
                                       int64_t *begin, int64_t *end)
{
    const char *mode = hth_node_str(node, "auto_pad", "NOTSET");
    int64_t given[HTH_MAX_RANK], extra[HTH_MAX_RANK] = {0}, total;
    if (hth_node_ints(node, "output_shape", given, HTH_MAX_RANK) <= 0 &&
        strncmp(mode, "SAME", 4) != 0) {
        return false;
    }
    (void)hth_node_ints(node, "output_padding", extra, HTH_MAX_RANK);
    if (__builtin_add_overflow(whole, extra[i], &total)) {
        total = whole; // refused by the shapes' rules
    }
    total = total > out ? total - out : 0;
    *begin = strcmp(mode, "SAME_UPPER") == 0 ? total / 2 : total - total / 2;
    *end = total - *begin;
    return true;
}

#endif
