// SPDX-License-Identifier: Apache-2.0
#include "base/id.h"

#include <openssl/evp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

hth_id hth_id_of(const hth_piece *piece, size_t n)
{
    hth_id id;
    unsigned len = 0;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int ok = ctx != NULL && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
    for (size_t i = 0; ok && i < n; i++) {
        ok = EVP_DigestUpdate(ctx, piece[i].data, piece[i].bytes) == 1;
    }
    ok = ok && EVP_DigestFinal_ex(ctx, id.byte, &len) == 1;
    EVP_MD_CTX_free(ctx);
    if (!ok || len != sizeof id.byte) {
        abort(); // libcrypto without SHA-256, or no memory for 200 bytes: no content address can be
                 // trusted
    }
    return id;
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
