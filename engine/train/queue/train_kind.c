// SPDX-License-Identifier: Apache-2.0
#include "engine/train/queue/train_kind.h"

#include "base/alloc.h"
#include "engine/train/kmeans/kmeans_job.h"
#include "runtime/arguments.h"

#include <stdio.h>
#include <string.h>

typedef struct kind_row {
    const char *name, *does;
    const char *of; // the argument that says to what
    hth_err (*open)(hth_models *ms, hth_request *request, hth_train_events events, hth_job **out);
    hth_err (*check)(const json_t *args);
} kind_row;

static hth_err kind_train(hth_models *ms, hth_request *request, hth_train_events events,
                          hth_job **out)
{
    hth_train_job *job;
    hth_err err = hth_train_job_open(ms, request, events, &job);
    *out = err == HTH_OK ? hth_train_job_base(job) : NULL;
    return err;
}

static hth_err kind_train_check(const json_t *args)
{
    hth_train_spec spec;
    return hth_train_spec_read(args, false, &spec);
}

static const kind_row kinds[] = {
    {"train", "trains", "model", kind_train, kind_train_check},
    {"kmeans", "clusters", "data", hth_kmeans_job_open, hth_kmeans_job_check}};
#define KINDS (sizeof kinds / sizeof *kinds)

// kind_of returns the row, NULL: there is none.
static const kind_row *kind_of(const json_t *args)
{
    const char *name = json_string_value(json_object_get(args, "kind"));
    for (size_t i = 0; i < KINDS; i++) {
        if (strcmp(name != NULL ? name : kinds[0].name, kinds[i].name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

hth_err hth_train_kind_open(hth_models *ms, hth_request *request, hth_train_events events,
                            hth_job **out)
{
    const char *given = request->arguments != NULL ? request->arguments : "";
    json_t *args = json_loads(given, 0, NULL);
    const kind_row *kind = kind_of(args);
    hth_err err = HTH_OK;
    *out = NULL;
    if (kind == NULL) {
        err = hth_fail(HTH_EINVAL, "there is no kind of job '%.40s': 'train' or 'kmeans'",
                       json_string_value(json_object_get(args, "kind")));
    }
    if (kind != NULL && kind != &kinds[0] && json_object_get(args, HTH_RANK_KEY) != NULL) {
        err = hth_fail(HTH_EINVAL, "a job of the kind '%s' can be no rank of several", kind->name);
    }
    json_decref(args);
    HTH_TRY(err);
    return kind->open(ms, request, events, out);
}

hth_err hth_train_kind_check(const char *arguments)
{
    json_t *args = json_loads(arguments != NULL ? arguments : "", 0, NULL);
    const kind_row *kind = kind_of(args);
    hth_err err = kind != NULL ? kind->check(args) : HTH_OK;
    json_decref(args);
    return err;
}

void hth_train_kind_does(const json_t *args, const char *job, char *out, size_t cap)
{
    const kind_row *kind = kind_of(args);
    kind = kind != NULL ? kind : &kinds[0];
    const json_t *of = json_object_get(args, kind->of);
    static const char *const keys[] = {"dataset", "file", "path"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && json_is_object(of); i++) {
        const json_t *named = json_object_get(of, keys[i]);
        of = named != NULL ? named : of;
    }
    const char *text = json_string_value(of);
    snprintf(out, cap, "%s '%.200s'", kind->does, text != NULL ? text : job);
}
