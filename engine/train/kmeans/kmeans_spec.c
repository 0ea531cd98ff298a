// SPDX-License-Identifier: Apache-2.0
#include "engine/train/kmeans/kmeans_spec.h"

#include "engine/train/kmeans/kmeans_job.h"
#include "engine/train/train_spec.h"
#include "runtime/tenants/owner.h"

#include <stdlib.h>

#define SPEC_ITERATIONS 300  // scikit-learn's
#define SPEC_TOLERANCE  1e-4 // ..

// spec_count reads a whole number of at least 1; dflt 0: it must be there.
static hth_err spec_count(const json_t *args, const char *key, size_t dflt, double most,
                          size_t *out)
{
    const json_t *v = json_object_get(args, key);
    *out = dflt;
    if (v == NULL && dflt == 0) {
        return hth_fail(HTH_EINVAL, "--%s N (the argument '%s') is missing", key, key);
    }
    double x = json_number_value(v);
    bool whole = json_is_number(v) && x >= 1 && x <= most && x == (double)(size_t)x;
    if (v != NULL && !whole) {
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        hth_fail(HTH_EINVAL, "%s is a whole number from 1 to %.0f, not %.40s", key, most,
                 text != NULL ? text : "");
        free(text);
        return HTH_EINVAL;
    }
    *out = v != NULL ? (size_t)x : dflt;
    return HTH_OK;
}

// spec_init reads where centroids begin. A file says so by itself.
static hth_err spec_init(const json_t *args, hth_kmeans_spec *spec)
{
    static const char *const words[] = {"k-means++", "random"};
    int which;
    HTH_TRY(hth_spec_file(args, "start", &spec->start));
    HTH_TRY(hth_spec_choice(args, "init", "k-means++", words, 2, &which));
    spec->what.init = which == 0 ? HTH_KMEANS_PLUS_PLUS : HTH_KMEANS_RANDOM;
    if (spec->start.name == NULL) {
        return HTH_OK;
    }
    spec->what.init = HTH_KMEANS_GIVEN;
    return json_object_get(args, "init") == NULL
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "centroids begin by 'init' or by 'start', not by both");
}

hth_err hth_kmeans_spec_read(const json_t *args, hth_kmeans_spec *spec)
{
    double seed, retries, priority, checkpoint;
    *spec = (hth_kmeans_spec){.save_as = hth_spec_text(args, "save-as"),
                              .owner = hth_spec_text(args, HTH_META_OWNER),
                              .budget = hth_spec_text(args, "budget"),
                              .resume = json_is_true(json_object_get(args, "resume"))};
    HTH_TRY(hth_spec_file(args, "data", &spec->data));
    if (spec->data.name == NULL) {
        return hth_fail(HTH_EINVAL, "the points (the argument 'data') are missing");
    }
    HTH_TRY(spec_count(args, "k", 0, UINT32_MAX, &spec->what.k));
    HTH_TRY(spec_count(args, "iterations", SPEC_ITERATIONS, 1e9, &spec->what.iterations));
    HTH_TRY(hth_spec_number(args, "tolerance", SPEC_TOLERANCE, 0, 1e9, &spec->what.tolerance));
    HTH_TRY(hth_spec_number(args, "seed", 0, 0, HTH_SPEC_MOST_SEED, &seed));
    HTH_TRY(hth_spec_number(args, "retries", 0, 0, 1000, &retries)); // the queue's
    HTH_TRY(hth_spec_number(args, "priority", 0, -100, 100, &priority));
    HTH_TRY(hth_spec_number(args, "checkpoint-every", 0, 0, 1e9, &checkpoint));
    spec->checkpoint = (size_t)checkpoint;
    HTH_TRY(hth_spec_number(args, "time-limit", 0, 0, 1e9, &spec->time_limit));
    spec->what.seed = (uint64_t)seed;
    return spec_init(args, spec);
}

hth_err hth_kmeans_job_check(const json_t *args)
{
    hth_kmeans_spec spec;
    return hth_kmeans_spec_read(args, &spec);
}
