// SPDX-License-Identifier: Apache-2.0
// tests/rig/kmeans_rig.h - K-means jobs through an engine: points anywhere, so that iterations go
// on, the first K of which are also a start.
#ifndef HTH_TESTS_RIG_KMEANS_RIG_H
#define HTH_TESTS_RIG_KMEANS_RIG_H

#include "tests/rig/train_job.h"

#define POINTS     20000
#define COLUMNS    8
#define K          12
#define ITERATIONS 8

typedef struct rig {
    fixture f;
    float *x;
    char data[200], start[200];
    bool starts; // jobs have `start` where they say nothing else
} rig;

// write_points writes the first n points of the rig, as they are now.
static inline void write_points(const rig *r, const char *name, int64_t n, char path[200])
{
    writer w = {NULL, NULL, 0};
    writer_add(&w, "x", "F32", (int64_t[]){n, COLUMNS}, 2, r->x,
               (size_t)(n * COLUMNS) * sizeof *r->x);
    snprintf(path, 200, "%s/%s.safetensors", r->f.dir, name);
    writer_close(&w, path);
}

// rig_points makes the points of a rig whose fixture is open.
static inline void rig_points(rig *r)
{
    uint32_t state = 7;
    r->x = calloc(POINTS * COLUMNS, sizeof *r->x);
    assert_non_null(r->x);
    for (size_t i = 0; i < POINTS * COLUMNS; i++) {
        state = state * 1664525U + 1013904223U;
        r->x[i] = (float)(state >> 8) * 0x1p-24F;
    }
    write_points(r, "points", POINTS, r->data);
    write_points(r, "start", K, r->start);
}

static inline void rig_close(rig *r)
{
    free(r->x);
    fixture_close(&r->f);
}

// asks is what a job is asked for with; `more`: JSON members to add. asks_text: the same as text.
static inline json_t *asks(const rig *r, const char *result, const char *more)
{
    json_t *q = json_pack("{s:s, s:s, s:i, s:i, s:i, s:s}", "kind", "kmeans", "data", r->data, "k",
                          K, "iterations", ITERATIONS, "tolerance", 0, "save-as", result);
    json_t *extra = json_loads(more, 0, NULL);
    assert_non_null(extra);
    if (r->starts) {
        json_object_set_new(q, "start", json_string(r->start));
    }
    json_object_update(q, extra);
    json_decref(extra);
    return q;
}

static inline char *asks_text(const rig *r, const char *result, const char *more)
{
    json_t *q = asks(r, result, more);
    char *text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    return text;
}

static inline json_t *cluster(rig *r, const char *result, const char *more)
{
    hth_err err;
    json_t *doc = train(&r->f, asks(r, result, more), &err);
    if (doc == NULL) {
        fail_msg("%s: %s", more, hth_err_detail());
    }
    return doc;
}

static inline void refused(rig *r, const char *more, const char *words)
{
    hth_err err;
    json_t *doc = train(&r->f, asks(r, "bad", more), &err);
    if (doc != NULL) {
        fail_msg("%s: not refused", more);
    }
    if (strstr(hth_err_detail(), words) == NULL) {
        fail_msg("%s: '%s' is not in: %s", more, words, hth_err_detail());
    }
    bool there;
    assert_ok(hth_store_has(r->f.store, "bad", 0, &there));
    assert_false(there);
}

static inline double number(const json_t *doc, const char *key)
{
    return json_number_value(json_object_get(doc, key));
}

// labels_of has a model, the result of a job, assign all points: the labels, to be freed.
static inline int64_t *labels_of(rig *r, const char *model)
{
    const hth_request_tensor in = {.name = "x",
                                   .t = {.dtype = HTH_DT_F32,
                                         .shape = {2, {POINTS, COLUMNS}},
                                         .data = r->x,
                                         .bytes = POINTS * COLUMNS * sizeof(float)}};
    call c = {.r = {.model = model, .inputs = &in, .n_inputs = 1}};
    assert_ok(call_run(r->f.engine, &c));
    assert_string_equal(c.name[0], "label");
    assert_string_equal(c.name[1], "distance");
    free(c.out[1].data);
    return c.out[0].data;
}

#endif
