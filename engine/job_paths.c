// SPDX-License-Identifier: Apache-2.0
#include "engine/job_paths.h"

#include "base/alloc.h"
#include "runtime/checkpoint_index.h"

int hth_job_paths(const json_t *args, hth_named_path out[HTH_JOB_PATHS])
{
    static const struct {
        const char *key;
        hth_open_use use;
    } keys[HTH_JOB_PATHS] = {{"data", HTH_OPEN_DATA},
                             {"eval", HTH_OPEN_DATA},
                             {"start", HTH_OPEN_DATA},
                             {"spill", HTH_OPEN_SCRATCH}};
    int n = 0;
    for (int i = 0; i < HTH_JOB_PATHS; i++) {
        const json_t *v = json_object_get(args, keys[i].key);
        const char *path = json_string_value(json_is_object(v) ? json_object_get(v, "path") : v);
        if (path != NULL) {
            out[n++] = (hth_named_path){keys[i].use, path};
        }
    }
    return n;
}

hth_err hth_job_paths_keep(hth_store *store, const json_t *args)
{
    hth_named_path path[HTH_JOB_PATHS];
    int n = hth_job_paths(args, path);
    for (int i = 0; i < n; i++) {
        HTH_TRY(hth_paths_keep(store, path[i]));
    }
    return HTH_OK;
}

hth_err hth_job_paths_begin(hth_store *store)
{
    size_t i;
    json_t *names, *name, *doc, *docs = json_array();
    int n = 0;
    hth_err err = hth_checkpoint_list(store, &names);
    if (err != HTH_OK) {
        json_decref(docs);
        return err;
    }
    json_array_foreach(names, i, name)
    {
        if (hth_checkpoint_find(store, json_string_value(name), &doc) == HTH_OK) {
            json_array_append_new(docs, doc); // the paths point into it
        }
    }
    hth_named_path *list = hth_calloc(json_array_size(docs) * HTH_JOB_PATHS + 1, sizeof *list);
    json_array_foreach(docs, i, doc)
    {
        n += list != NULL ? hth_job_paths(json_object_get(doc, "job"), list + n) : 0;
    }
    err = list != NULL ? hth_paths_begin(store, list, n) : hth_no_memory("the paths of jobs");
    hth_free(list);
    json_decref(docs);
    json_decref(names);
    return err;
}
