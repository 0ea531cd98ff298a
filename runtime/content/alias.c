// SPDX-License-Identifier: Apache-2.0
#include "runtime/content/alias.h"

#include "base/alloc.h"
#include "runtime/arguments.h"
#include "runtime/catalog.h"
#include "runtime/checkpoint_index.h"
#include "runtime/content/dataset_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

hth_err hth_catalog_resolve(hth_store *store, const char *model, char name[201], int *version)
{
    hth_store_alias a;
    HTH_TRY(hth_catalog_parse(model, name, version));
    hth_err err = *version == 0 ? hth_store_alias_get(store, name, &a) : HTH_ENOENT;
    if (err == HTH_OK) {
        strcpy(name, a.name);
        *version = a.version;
    }
    return err == HTH_ENOENT ? HTH_OK : err;
}

static hth_err alias_arguments(const json_t *args, hth_alias_change *out)
{
    const char *alias = json_string_value(json_object_get(args, "alias"));
    const char *model = json_string_value(json_object_get(args, "model"));
    bool remove = json_is_true(json_object_get(args, "remove"));
    HTH_TRY(hth_arguments_check(HTH_COMMAND_ALIAS, args));
    HTH_TRY(hth_store_check_name(alias));
    snprintf(out->alias.alias, sizeof out->alias.alias, "%s", alias);
    if (remove != (model == NULL)) {
        return hth_fail(HTH_EINVAL, remove ? "an alias is removed, or stands for a model: not both"
                                           : "the argument 'model' is missing");
    }
    out->ready = !json_is_true(json_object_get(args, "no-wait"));
    return remove ? HTH_OK : hth_catalog_parse(model, out->alias.name, &out->alias.version);
}

hth_err hth_alias_read(const char *arguments, hth_alias_change *out)
{
    json_t *args;
    *out = (hth_alias_change){.ready = false};
    HTH_TRY(hth_arguments_read(HTH_COMMAND_ALIAS, arguments, &args));
    hth_err err = alias_arguments(args, out);
    json_decref(args);
    return err;
}

bool hth_alias_moves(hth_store *store, const hth_alias_change *change)
{
    hth_store_alias now;
    const hth_store_alias *a = &change->alias;
    return a->name[0] != 0 && hth_store_alias_get(store, a->alias, &now) == HTH_OK &&
           (strcmp(a->name, now.name) != 0 || a->version != now.version);
}

static json_t *alias_target(const hth_store_alias *alias)
{
    char text[HTH_STORE_TARGET];
    if (alias->name[0] == 0) {
        return json_null();
    }
    hth_store_alias_target(alias, text);
    return json_string(text);
}

// alias_model refuses names of datasets and of jobs' checkpoints, which belong to a tenant, whether
// there are such or not.
static hth_err alias_model(const char *name)
{
    HTH_TRY(hth_dataset_model(name));
    return hth_checkpoint_model(name);
}

hth_err hth_alias_answer(hth_store *store, const hth_alias_change *change, char **json)
{
    const hth_store_alias *a = &change->alias;
    hth_store_alias before = {.version = 0};
    *json = NULL;
    if (a->name[0] != 0) {
        HTH_TRY(alias_model(a->alias));
        HTH_TRY(alias_model(a->name));
        HTH_TRY(hth_store_alias_set(store, a, &before));
    } else {
        (void)hth_store_alias_get(store, a->alias, &before);
        HTH_TRY(hth_store_alias_rm(store, a->alias));
    }
    json_t *doc = json_pack("{s:s, s:o, s:o}", "alias", a->alias, "model", alias_target(a),
                            "before", alias_target(&before));
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    *json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return *json != NULL ? HTH_OK : hth_no_memory("an answer");
}

hth_err hth_alias_rows(hth_store *store, json_t **out)
{
    hth_store_alias *a;
    int n;
    *out = NULL;
    HTH_TRY(hth_store_alias_list(store, &a, &n));
    *out = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(
            *out, json_pack("{s:s, s:o}", "alias", a[i].alias, "model", alias_target(&a[i])));
    }
    hth_free(a);
    return HTH_OK;
}
