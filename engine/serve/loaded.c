// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/loaded.h"

#include "base/alloc.h"
#include "runtime/ledger.h"

// loaded_is_coming says that a model is one that is to take another's place. Few are: that costs
// less than to look for each model's name.
static bool loaded_is_coming(const hth_name *const *coming, int n, const hth_model *model)
{
    int i = 0;
    while (i < n && coming[i]->coming != model) {
        i++;
    }
    return i < n;
}

static json_t *loaded_row(const hth_model *model, bool coming, const hth_ledger *ledger)
{
    static const hth_ledger_row none = {.programs = 0};
    const hth_ledger_row *row = hth_ledger_row_of(ledger, &model->account);
    row = row != NULL ? row : &none;
    return json_pack("{s:s, s:i, s:s, s:s, s:b, s:b, s:I, s:I}", "name", model->name, "version",
                     model->version, "state", coming ? "LOADING" : "READY", "reason", "", "loaded",
                     row->held_bytes > 0 || row->mapped_bytes > 0, "pinned", row->pinned_bytes > 0,
                     "device_bytes", (json_int_t)(row->private_bytes + row->shared_bytes),
                     "mapped_bytes", (json_int_t)row->mapped_bytes);
}

static json_t *loaded_name_row(const hth_name *name, bool waits)
{
    int version = name->refused;
    const char *state = "UNAVAILABLE", *reason = name->why;
    if (waits) {
        version = name->wanted;
        state = "LOADING";
        reason = "";
    }
    return json_pack("{s:s, s:i, s:s, s:s, s:b, s:b, s:i, s:i}", "name", name->name, "version",
                     version, "state", state, "reason", reason, "loaded", 0, "pinned", 0,
                     "device_bytes", 0, "mapped_bytes", 0);
}

hth_err hth_loaded_list(const hth_models *ms, json_t **out)
{
    const hth_name **coming = NULL;
    int n_coming = 0, cap = 0;
    hth_ledger ledger;
    for (const hth_name *n = ms->names; n != NULL; n = n->next) {
        if (n->coming != NULL) {
            if (HTH_GROW(coming, n_coming, cap) != 0) {
                hth_free(coming);
                return hth_no_memory("an answer");
            }
            coming[n_coming++] = n;
        }
    }
    hth_err err = hth_ledger_read(ms->site, &ledger);
    if (err != HTH_OK) {
        hth_free(coming);
        return err;
    }
    json_t *list = json_array();
    for (const hth_model *m = ms->list; m != NULL; m = m->next) {
        json_array_append_new(list, loaded_row(m, loaded_is_coming(coming, n_coming, m), &ledger));
    }
    for (const hth_name *n = ms->names; n != NULL; n = n->next) {
        bool waits = n->wanted > 0 && n->coming == NULL;
        if (waits || n->refused > 0) {
            json_array_append_new(list, loaded_name_row(n, waits));
        }
    }
    hth_ledger_fini(&ledger);
    hth_free(coming);
    *out = json_pack("{s:o}", "models", list);
    return *out != NULL ? HTH_OK : hth_no_memory("an answer");
}
