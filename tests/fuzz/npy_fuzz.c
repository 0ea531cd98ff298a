// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to the .npy parser and reads every byte that an accepted array claims to
// have.
#include "client/npy.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint8_t fuzz_sink;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    hearth_tensor t;
    bool fortran;
    if (hth_npy_parse(bytes, n, &t, &fortran) == HTH_OK) {
        for (size_t i = 0; i < t.bytes; i++) {
            fuzz_sink ^= ((const uint8_t *)t.data)[i];
        }
    }
    return 0;
}
