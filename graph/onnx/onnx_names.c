// SPDX-License-Identifier: Apache-2.0
#include "graph/onnx/onnx_names.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Names are a file's: under a hash that anybody can compute, a file could have all of its names in
// one chain. Hence SipHash-1-3 (Aumasson, Bernstein 2012) under a key of this process.
#define HASH_FUNCTION(data, bytes, hash) ((hash) = names_hash(data, bytes))
static unsigned names_hash(const void *data, size_t bytes);
#include "base/hash.h"

#include <pthread.h>
#include <sys/random.h>

static uint64_t names_key[2];

static void names_make_key(void)
{
    if (getrandom(names_key, sizeof names_key, GRND_NONBLOCK) != sizeof names_key) {
        names_key[0] ^= (uint64_t)(uintptr_t)&names_key; // where the system put us
    }
}

static uint64_t names_rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void names_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = names_rotate(v[1], 13) ^ v[0];
    v[3] = names_rotate(v[3], 16) ^ v[2];
    v[0] = names_rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = names_rotate(v[1], 17) ^ v[2];
    v[3] = names_rotate(v[3], 21) ^ v[0];
    v[2] = names_rotate(v[2], 32);
}

static unsigned names_hash(const void *data, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, names_make_key);
    uint64_t v[4] = {names_key[0] ^ 0x736f6d6570736575, names_key[1] ^ 0x646f72616e646f6d,
                     names_key[0] ^ 0x6c7967656e657261, names_key[1] ^ 0x7465646279746573};
    for (size_t i = 0; i <= bytes; i += 8) {
        size_t left = bytes - i;
        uint64_t word = left < 8 ? (uint64_t)bytes << 56 : 0;
        memcpy(&word, (const char *)data + i, left < 8 ? left : 8);
        v[3] ^= word;
        names_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) {
        names_round(v);
    }
    return (unsigned)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

struct hth_names_entry {
    UT_hash_handle hh;
    int index;
    char name[];
};

hth_err hth_names_put(hth_names *names, const char *name, int index)
{
    struct hth_names_entry *e;
    size_t n = strlen(name);
    HASH_FIND(hh, names->head, name, n, e);
    if (e != NULL) {
        return HTH_EEXIST;
    }
    e = hth_alloc(sizeof *e + n + 1);
    if (e == NULL) {
        return hth_no_memory("a name");
    }
    e->index = index;
    memcpy(e->name, name, n + 1);
    HASH_ADD_KEYPTR(hh, names->head, e->name, n, e);
    if (e->hh.tbl == NULL) {
        hth_free(e);
        return hth_no_memory("a name");
    }
    return HTH_OK;
}

int *hth_names_at(const hth_names *names, const char *name)
{
    struct hth_names_entry *e;
    HASH_FIND(hh, names->head, name, strlen(name), e);
    return e != NULL ? &e->index : NULL;
}

bool hth_names_find(const hth_names *names, const char *name, int *index)
{
    const int *at = hth_names_at(names, name);
    if (at != NULL) {
        *index = *at;
    }
    return at != NULL;
}

void hth_names_fini(hth_names *names)
{
    struct hth_names_entry *e, *next;
    HASH_ITER (hh, names->head, e, next) {
        HASH_DEL(names->head, e);
        hth_free(e);
    }
}
