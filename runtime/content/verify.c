// SPDX-License-Identifier: Apache-2.0
#include "runtime/content/verify.h"

#include "base/alloc.h"
#include "runtime/arguments.h"
#include "runtime/catalog.h"

#include <jansson.h>

#include <stdlib.h>

#define VERIFY_LISTED 1000 // a disk that has gone would fill any message

typedef struct verify_answer {
    hth_progress_fn progress;
    void *ctx;
    json_t *damaged;
} verify_answer;

static int verify_progress(void *ctx, uint64_t done, uint64_t total)
{
    const verify_answer *a = ctx;
    return a->progress != NULL ? a->progress(a->ctx, done, total) : 0;
}

static void verify_damage(void *ctx, const hth_store_damage *damage)
{
    verify_answer *a = ctx;
    if (json_array_size(a->damaged) < VERIFY_LISTED) { // `?`: bytes that are no text are null
        json_array_append_new(a->damaged,
                              json_pack("{s:s?, s:i, s:s?, s:s, s:s?}", "model", damage->model,
                                        "version", damage->version, "tensor", damage->tensor,
                                        "file", damage->file, "why", damage->what));
    }
}

static hth_err verify_run(hth_store *store, const json_t *args, verify_answer *answer,
                          hth_store_verified *out)
{
    char name[201];
    int version = 0;
    HTH_TRY(hth_arguments_check(HTH_COMMAND_VERIFY, args));
    const char *model = json_string_value(json_object_get(args, "model"));
    if (model == NULL) {
        return hth_store_verify_all(store, NULL, 0, verify_progress, verify_damage, answer, out);
    }
    HTH_TRY(hth_catalog_resolve(store, model, name, &version));
    return hth_store_verify_all(store, name, version, verify_progress, verify_damage, answer, out);
}

hth_err hth_verify_answer(hth_store *store, const char *arguments, hth_progress_fn progress,
                          void *ctx, char **json)
{
    verify_answer a = {progress, ctx, json_array()};
    hth_store_verified v;
    json_t *args;
    *json = NULL;
    hth_err err = hth_arguments_read(HTH_COMMAND_VERIFY, arguments, &args);
    if (err == HTH_OK) {
        err = verify_run(store, args, &a, &v);
    }
    json_decref(args);
    if (err != HTH_OK) {
        json_decref(a.damaged);
        return err;
    }
    json_t *doc = json_pack("{s:I, s:I, s:I, s:I, s:o}", "versions", (json_int_t)v.versions,
                            "tensors", (json_int_t)v.tensors, "bytes", (json_int_t)v.bytes,
                            "damages", (json_int_t)v.damaged, "damaged", a.damaged);
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    *json = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return *json != NULL ? HTH_OK : hth_no_memory("an answer");
}
