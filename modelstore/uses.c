// SPDX-License-Identifier: Apache-2.0
#include "modelstore/uses.h"

#include "base/alloc.h"
#include "base/hash.h"

#include <stdio.h>

struct hth_use {
    hth_id id;
    uint32_t n;
    UT_hash_handle hh;
};

static hth_err uses_add(hth_uses *uses, const hth_id *id)
{
    hth_use *x;
    HASH_FIND(hh, uses->by_id, id, sizeof *id, x);
    if (x == NULL && (x = hth_calloc(1, sizeof *x)) != NULL) {
        x->id = *id;
        HASH_ADD(hh, uses->by_id, id, sizeof x->id, x);
        if (!HTH_HASH_ADDED(x)) {
            hth_free(x);
            x = NULL;
        }
    }
    if (x == NULL) {
        return hth_no_memory("counting the uses of tensors");
    }
    x->n++;
    return HTH_OK;
}

// uses_record counts a record's tensors, or none of them.
static hth_err uses_record(hth_uses *uses, const MDB_val *value)
{
    for (int pass = 0; pass < 2; pass++) { // to its end first
        hth_record r;
        HTH_TRY(hth_record_open(&r, value->mv_data, value->mv_size));
        for (int i = 0; i < r.n_tensors; i++) {
            hth_record_tensor x;
            HTH_TRY(hth_record_next(&r, &x));
            HTH_TRY(pass == 1 && !x.repeated ? uses_add(uses, &x.id) : HTH_OK);
        }
    }
    return HTH_OK;
}

static hth_err uses_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    hth_uses *u = ctx;
    char name[HTH_STORE_NAME_MAX + 1] = "";
    int version = 0;
    hth_version_key k;
    hth_err err = hth_version_key_parse(key, name, &version);
    if (err == HTH_OK) {
        k = hth_version_key_of(name, version);
        err = hth_check_record(txn, &k, value);
    }
    if (err == HTH_OK) {
        err = uses_record(u, value);
    }
    if (err == HTH_ECORRUPT) {
        u->unreadable++;
        snprintf(u->example, sizeof u->example, "%s:%d", name, version);
    }
    return err == HTH_ECORRUPT ? HTH_OK : err;
}

hth_err hth_uses_count(hth_txn *txn, hth_uses *uses)
{
    return hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, uses_row, uses);
}

uint32_t hth_uses_of(const hth_uses *uses, const hth_id *id)
{
    hth_use *x;
    HASH_FIND(hh, uses->by_id, id, sizeof *id, x);
    return x != NULL ? x->n : 0;
}

void hth_uses_fini(hth_uses *uses)
{
    hth_use *x, *next;
    HASH_ITER (hh, uses->by_id, x, next) {
        HASH_DEL(uses->by_id, x);
        hth_free(x);
    }
    *uses = (hth_uses){.by_id = NULL};
}
