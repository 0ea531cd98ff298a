// SPDX-License-Identifier: Apache-2.0
#include "graph/onnx_names.h"

#include "base/alloc.h"

#include <stddef.h>
#include <string.h>

// uthash reports a failed allocation by clearing the entry's table pointer instead of ending the
// process.
#define HASH_NONFATAL_OOM    1
#define uthash_malloc(bytes) hth_alloc(bytes)
#define uthash_free(p, n)    hth_free(p)
#include <uthash.h>

struct hth_names_entry {
    UT_hash_handle hh;
    int index;
    char name[];
};

hth_err hth_names_put(hth_names *t, const char *name, int index)
{
    struct hth_names_entry *e;
    size_t n = strlen(name);
    HASH_FIND(hh, t->head, name, n, e);
    if (e != NULL) {
        return HTH_EEXIST;
    }
    e = hth_alloc(sizeof *e + n + 1);
    if (e == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a name");
    }
    e->index = index;
    memcpy(e->name, name, n + 1);
    HASH_ADD_KEYPTR(hh, t->head, e->name, n, e);
    if (e->hh.tbl == NULL) {
        hth_free(e);
        return hth_fail(HTH_ENOMEM, "no memory for a name");
    }
    return HTH_OK;
}

bool hth_names_find(const hth_names *t, const char *name, int *index)
{
    struct hth_names_entry *e;
    HASH_FIND(hh, t->head, name, strlen(name), e);
    if (e != NULL) {
        *index = e->index;
    }
    return e != NULL;
}

void hth_names_fini(hth_names *t)
{
    struct hth_names_entry *e, *next;
    HASH_ITER (hh, t->head, e, next) {
        HASH_DEL(t->head, e);
        hth_free(e);
    }
}
