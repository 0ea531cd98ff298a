// SPDX-License-Identifier: Apache-2.0
// kernels/cuda/kept_texts.h - a place for one text that is kept from run to run, for tests of what
// a device keeps (hth_device_kept, hth_timing_cache).
#ifndef HTH_KERNELS_CUDA_KEPT_TEXTS_H
#define HTH_KERNELS_CUDA_KEPT_TEXTS_H

#include "base/test.h"

#include <stdio.h>
#include <string.h>

typedef struct kept_texts {
    char key[512], value[8192];
    int puts;
} kept_texts;

static inline hth_err texts_get(void *ctx, const char *key, char *value, size_t cap)
{
    kept_texts *t = ctx;
    if (strcmp(key, t->key) != 0) {
        return HTH_ENOENT;
    }
    snprintf(value, cap, "%s", t->value);
    return HTH_OK;
}

static inline hth_err texts_put(void *ctx, const char *key, const char *value)
{
    kept_texts *t = ctx;
    t->puts++;
    assert_true(strlen(key) < sizeof t->key && strlen(value) < sizeof t->value);
    snprintf(t->key, sizeof t->key, "%s", key);
    snprintf(t->value, sizeof t->value, "%s", value);
    return HTH_OK;
}

#endif
