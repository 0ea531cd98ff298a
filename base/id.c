// SPDX-License-Identifier: Apache-2.0
#include "base/id.h"

#include <openssl/evp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// An hth_id_sum is libcrypto's own context.

static void id_need(bool good)
{
    if (!good) {
        abort(); // libcrypto without SHA-256, or no memory for 200 bytes: no content address can be
                 // trusted
    }
}

hth_id_sum *hth_id_sum_begin(void)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    id_need(ctx != NULL && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1);
    return (hth_id_sum *)ctx;
}

void hth_id_sum_add(hth_id_sum *sum, const void *data, size_t bytes)
{
    id_need(EVP_DigestUpdate((EVP_MD_CTX *)sum, data, bytes) == 1);
}

hth_id hth_id_sum_end(hth_id_sum *sum)
{
    hth_id id;
    unsigned len = 0;
    id_need(EVP_DigestFinal_ex((EVP_MD_CTX *)sum, id.byte, &len) == 1 && len == sizeof id.byte);
    EVP_MD_CTX_free((EVP_MD_CTX *)sum);
    return id;
}

hth_id hth_id_of(const hth_chunk *chunk, size_t n)
{
    hth_id_sum *sum = hth_id_sum_begin();
    for (size_t i = 0; i < n; i++) {
        hth_id_sum_add(sum, chunk[i].data, chunk[i].bytes);
    }
    return hth_id_sum_end(sum);
}

bool hth_id_equal(const hth_id *a, const hth_id *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

const char *hth_id_hex(const hth_id *id, char out[HTH_ID_HEX])
{
    for (size_t i = 0; i < sizeof id->byte; i++) {
        snprintf(out + 2 * i, 3, "%02x", id->byte[i]);
    }
    return out;
}
