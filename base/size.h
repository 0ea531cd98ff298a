// SPDX-License-Identifier: Apache-2.0
// base/size.h - numbers of bytes as people read them.
#ifndef HTH_BASE_SIZE_H
#define HTH_BASE_SIZE_H

#include <stdint.h>

typedef struct hth_size {
    char text[24];
} hth_size;

// hth_size_of writes "0 B", "97.7 MiB", "1.5 TiB": hth_size_of(bytes).text stands in a sentence.
hth_size hth_size_of(uint64_t bytes);
// hth_size_up and hth_size_down never say less, or more, than there are: for "enough" and "at
// least".
hth_size hth_size_up(uint64_t bytes);
hth_size hth_size_down(uint64_t bytes);
// hth_size_exact writes "28416671 B".
hth_size hth_size_exact(uint64_t bytes);
// hth_size_pair is for two numbers that are compared: both in bytes where they would look equal.
// Each is written to its own *out.
void hth_size_pair(uint64_t a, uint64_t b, hth_size *out_a, hth_size *out_b);

#endif
