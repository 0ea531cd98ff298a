// SPDX-License-Identifier: Apache-2.0
// The list of models, as the caller may have it: names of models are everybody's to know, who owns
// one only its owner's and administrators'; a checkpoint tells of a job, and is not there for
// others.
#include "runtime/catalog.h"

#include "base/alloc.h"
#include "runtime/checkpoint_index.h"
#include "runtime/content/alias.h"
#include "runtime/content/dataset_index.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

// What all versions of a name have in common.
typedef struct list_name {
    char owner[HTH_TENANT]; // "": nobody's
    bool told;              // the caller may know whose
    bool checkpoint, hidden;
} list_name;

static hth_err list_read(hth_store *store, const char *name, const hth_caller *caller,
                         list_name *out)
{
    bool all = caller == NULL || caller->admin;
    *out = (list_name){.hidden = hth_dataset_is(store, name)};
    hth_err err = hth_owner_get(store, name, out->owner);
    if (err == HTH_ENOMEM) {
        return err;
    }
    bool known = err == HTH_OK; // else its record is damaged
    out->told = all || (known && (out->owner[0] == 0 || strcmp(out->owner, caller->tenant) == 0));
    out->checkpoint = hth_checkpoint_is(store, name);
    out->hidden = out->hidden || (out->checkpoint && !out->told);
    return HTH_OK;
}

static json_t *list_row(const hth_store_entry *entry, const list_name *of)
{
    const hth_store_entry *e = entry;
    json_t *row =
        json_pack("{s:s, s:i, s:I, s:I, s:i, s:b, s:I, s:s?}", "name", e->name, "version",
                  e->version, "bytes", (json_int_t)e->bytes, "own_bytes", (json_int_t)e->own_bytes,
                  "tensors", e->n_tensors, "checkpoint", of->checkpoint, "created_ns",
                  (json_int_t)e->created_ns, "owner", of->told ? of->owner : NULL);
    if (e->damaged) {
        json_object_set_new(row, "damaged", json_true());
    }
    return row;
}

static hth_err list_rows(hth_store *store, const hth_caller *caller, json_t *list)
{
    hth_store_entry *e;
    int n;
    list_name of = {.hidden = false};
    HTH_TRY(hth_store_list(store, &e, &n)); // versions of a name follow each other
    hth_err err = HTH_OK;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        if (i == 0 || strcmp(e[i].name, e[i - 1].name) != 0) {
            err = list_read(store, e[i].name, caller, &of);
        }
        if (err == HTH_OK && !of.hidden && json_array_append_new(list, list_row(&e[i], &of)) != 0) {
            err = hth_no_memory("the list of models");
        }
    }
    hth_free(e);
    return err;
}

hth_err hth_catalog_list(hth_store *store, const hth_caller *caller, char **json)
{
    json_t *list = json_array(), *aliases = NULL;
    *json = NULL;
    hth_err err = list_rows(store, caller, list);
    if (err == HTH_OK) {
        err = hth_alias_rows(store, &aliases);
    }
    json_t *doc = json_pack("{s:o, s:o?}", "models", list, "aliases", aliases);
    char *text = doc != NULL && err == HTH_OK ? json_dumps(doc, JSON_COMPACT) : NULL;
    *json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    HTH_TRY(err);
    return *json != NULL ? HTH_OK : hth_no_memory("the list of models");
}
