// SPDX-License-Identifier: Apache-2.0
#include "runtime/content/dataset_own.h"

#include "base/hash.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define OWN_PREFIX "upload-"
#define OWN_DIGITS 24

bool hth_dataset_own_is(const char *name)
{
    size_t n = strlen(OWN_PREFIX);
    return strncmp(name, OWN_PREFIX, n) == 0 && strlen(name) == n + OWN_DIGITS &&
           strspn(name + n, "0123456789abcdef") == OWN_DIGITS;
}

void hth_dataset_own_name(uint64_t id, const char *key, char out[HTH_DATASET_OWN])
{
    char hex[HTH_ID_HEX];
    hth_id sum = hth_id_of((hth_chunk[]){{&id, sizeof id}, {key, strlen(key)}}, 2);
    snprintf(out, HTH_DATASET_OWN, OWN_PREFIX "%.*s", OWN_DIGITS, hth_id_hex(&sum, hex));
}

void hth_dataset_own_drop(hth_store *store, const char *name, const char *tenant)
{
    char sentence[1024];
    snprintf(sentence, sizeof sentence, "%s", hth_err_detail());
    (void)hth_dataset_remove(store, name, tenant, (hth_dataset_who){tenant, true});
    (void)hth_fail(HTH_OK, "%s", sentence);
}

void hth_dataset_drop_own(hth_store *store, const json_t *args, const char *tenant)
{
    static const char *const keys[] = {"data", "eval", "start"};
    for (int i = 0; i < 3; i++) {
        const json_t *data = json_object_get(args, keys[i]);
        const char *name = json_string_value(json_object_get(data, "dataset"));
        if (name != NULL && json_is_true(json_object_get(data, "own"))) {
            hth_dataset_own_drop(store, name, tenant);
        }
    }
}

// own_expire removes the dataset of this row, where nothing needs it.
static hth_err own_expire(hth_store *store, const json_t *row)
{
    const char *name = json_string_value(json_object_get(row, "name"));
    const char *tenant = json_string_value(json_object_get(row, "tenant"));
    hth_err err = hth_dataset_remove(store, name, tenant, (hth_dataset_who){tenant, true});
    if (err == HTH_OK) {
        hth_log(INFO, STORE, "dataset-expired", "dataset=%s tenant=%s", name, tenant);
    }
    return err == HTH_EBUSY || err == HTH_ENOENT ? HTH_OK : err;
}

hth_err hth_dataset_own_expire(hth_store *store, uint64_t now_ns, uint64_t age_ns)
{
    json_t *doc, *row;
    size_t i;
    HTH_TRY(hth_dataset_list(store, (hth_dataset_who){NULL, true}, &doc));
    hth_err err = HTH_OK;
    json_array_foreach(json_object_get(doc, "datasets"), i, row)
    {
        uint64_t at = (uint64_t)json_integer_value(json_object_get(row, "created_ns"));
        bool old = now_ns > at && now_ns - at >= age_ns;
        const char *name = json_string_value(json_object_get(row, "name"));
        if (err == HTH_OK && old && hth_dataset_own_is(name)) {
            err = own_expire(store, row);
        }
    }
    json_decref(doc);
    return err;
}
