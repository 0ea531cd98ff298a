// SPDX-License-Identifier: Apache-2.0
// base/id.h - content addresses: SHA-256 (FIPS 180-4, by libcrypto) as a 32-byte value.
#ifndef HTH_BASE_ID_H
#define HTH_BASE_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_id {
    uint8_t byte[32];
} hth_id;

#define HTH_ID_HEX 65 // 64 digits and the terminator

// hth_id_of hashes the concatenation of `n` pieces. Any thread; cannot fail.
typedef struct hth_chunk {
    const void *data;
    size_t bytes;
} hth_chunk;
hth_id hth_id_of(const hth_chunk *chunk, size_t n);

// hth_id_sum is the same for content that comes in parts: hth_id_sum_end gives the id and frees the
// sum. One thread at a time.
typedef struct hth_id_sum hth_id_sum;
hth_id_sum *hth_id_sum_begin(void);
void hth_id_sum_add(hth_id_sum *sum, const void *data, size_t bytes);
hth_id hth_id_sum_end(hth_id_sum *sum);

bool hth_id_equal(const hth_id *a, const hth_id *b);
// hth_id_hex writes 64 lower-case digits and a NUL to `out` and returns it.
const char *hth_id_hex(const hth_id *id, char out[HTH_ID_HEX]);

#endif
