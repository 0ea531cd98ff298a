// SPDX-License-Identifier: Apache-2.0
// tests/rig/train_job.h - training jobs through an engine: the models of tests/data/train, datasets
// of the formulas that PyTorch's losses were made with, and questions about jobs.
#ifndef HTH_TESTS_RIG_TRAIN_JOB_H
#define HTH_TESTS_RIG_TRAIN_JOB_H

#include "engine/train/train.h"
#include "tests/rig/engine_call.h"

#include <jansson.h>
#include <math.h>

#define STEPS   6
#define BATCH   4
#define PLAN_MS 4 // of a search: any plan will do

// Who asks from now on; NULL: the server itself.
__attribute__((unused)) static const char *as_tenant;
__attribute__((unused)) static bool as_admin;

// A dataset file, tensors one behind the other.
typedef struct writer {
    json_t *head;
    char *data;
    size_t bytes;
} writer;

static inline void writer_add(writer *w, const char *name, const char *dtype, const int64_t *dim,
                              int rank, const void *data, size_t bytes)
{
    json_t *shape = json_array();
    for (int i = 0; i < rank; i++) {
        json_array_append_new(shape, json_integer(dim[i]));
    }
    w->head = w->head != NULL ? w->head : json_object();
    json_object_set_new(w->head, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape,
                                  "data_offsets", (json_int_t)w->bytes,
                                  (json_int_t)(w->bytes + bytes)));
    w->data = realloc(w->data, w->bytes + bytes);
    memcpy(w->data + w->bytes, data, bytes);
    w->bytes += bytes;
}

static inline void writer_close(writer *w, const char *path)
{
    char *head = json_dumps(w->head, JSON_COMPACT);
    uint64_t n = strlen(head);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite(&n, 8, 1, f);
    fwrite(head, 1, n, f);
    fwrite(w->data, 1, w->bytes, f);
    fclose(f);
    free(head);
    free(w->data);
    json_decref(w->head);
    *w = (writer){NULL, NULL, 0};
}

// STEPS batches of the formulas of tests/tools/make_train_models.py; classes 0: floats.
static inline void add_batches(writer *w, const char *name, const int64_t *dim, int rank,
                               int64_t classes, int64_t seed)
{
    int64_t shape[8] = {STEPS * BATCH}, per = BATCH;
    for (int i = 1; i < rank; i++) {
        shape[i] = dim[i - 1];
        per *= dim[i - 1];
    }
    size_t size = classes > 0 ? 8 : 4;
    char *data = malloc((size_t)(per * STEPS) * size);
    for (int64_t k = 0; k < STEPS; k++) {
        for (int64_t i = 0; i < per; i++) {
            if (classes > 0) {
                ((int64_t *)data)[k * per + i] = (i * 7 + (k + seed) * 5 + i / 3) % classes;
            } else {
                ((float *)data)[k * per + i] =
                    (float)((i * 37 + (k + seed) * 101 + i / 7 * 13) % 67 - 33) / 32;
            }
        }
    }
    writer_add(w, name, classes > 0 ? "I64" : "F32", shape, rank, data,
               (size_t)(per * STEPS) * size);
    free(data);
}

typedef struct training {
    const char *model;
    int64_t x[4];
    int x_rank; // batch included
    int64_t x_classes;
    int64_t y[2];
    int y_rank;
    int64_t y_classes, y_seed;
} training;

__attribute__((unused)) static const training image_net = {
    "net_momentum", {3, 12, 12}, 4, 0, {0}, 1, 4, 0};
__attribute__((unused)) static const training unet = {"unet_adam", {3, 12, 12}, 4, 0,
                                                      {12, 12},    3,           3, 0};
__attribute__((unused)) static const training encoder = {"encoder_adamw", {7}, 2, 30, {0}, 1, 5, 0};
__attribute__((unused)) static const training mobile = {"mobile_adam", {3, 12, 12}, 4, 0,
                                                        {0},           1,           4, 0};
__attribute__((unused)) static const training mlp = {"mlp_sgd", {12}, 2, 0, {2}, 2, 0, 9};
__attribute__((unused)) static const training mlp_inference = {
    "mlp_inference", {12}, 2, 0, {2}, 2, 0, 9};
__attribute__((unused)) static const training clipped = {"net_clip", {3, 12, 12}, 4, 0,
                                                         {0},        1,           4, 0};

__attribute__((unused)) static const training tokens = {"tokens_adamw", {7}, 2, 30, {7}, 2, 30, 1};
__attribute__((unused)) static const training unet_weighted = {"unet_weighted", {3, 12, 12}, 4, 0,
                                                               {12, 12},        3,           3, 0};
__attribute__((unused)) static const training smooth = {"net_smooth", {3, 12, 12}, 4, 0,
                                                        {0},          1,           4, 0};
__attribute__((unused)) static const training volume = {
    "volume_sgd", {1, 16, 24, 24}, 5, 0, {0}, 1, 4, 0};
__attribute__((unused)) static const training image_bce = {"net_bce", {3, 12, 12}, 4, 0,
                                                           {4},       2,           0, 9};
__attribute__((unused)) static const training mlp_bce = {"mlp_bce", {12}, 2, 0, {2}, 2, 0, 9};

// *bits: targets are 1 where the formula is positive, else 0; *ignored: label 3 of every so many
// counts for nothing, 0: all count.
static inline void targets_of(const training *t, bool *bits, int *ignored)
{
    char path[200], loss[16];
    double smoothing;
    snprintf(path, sizeof path, "tests/data/train/%s.txt", t->model);
    FILE *file = fopen(path, "r");
    *bits = file != NULL && fscanf(file, "%15s", loss) == 1 && strcmp(loss, "bce") == 0;
    *ignored = 0;
    if (file != NULL) {
        bool any = fscanf(file, "%*[^\n] options %lf %d", &smoothing, ignored) == 2;
        *ignored = any ? *ignored : 0;
        fclose(file);
    }
}

// Of the target that was added last.
static inline void change_batches(writer *w, const training *t, size_t from)
{
    size_t per = (w->bytes - from) / (t->y_classes > 0 ? 8 : 4) / STEPS;
    int64_t *label = (int64_t *)(void *)(w->data + from);
    float *bit = (float *)(void *)(w->data + from);
    bool bits;
    int ignored;
    targets_of(t, &bits, &ignored);
    for (size_t i = 0; i < per * STEPS; i++) {
        if (ignored > 0 && i % per % (size_t)ignored == 3) {
            label[i] = -100;
        } else if (bits) {
            bit[i] = bit[i] > 0;
        }
    }
}

static inline void prepare(fixture *f, const training *t, char *data)
{
    char path[200];
    writer w = {NULL, NULL, 0};
    snprintf(path, sizeof path, "tests/data/train/%s.onnx", t->model);
    put(f->store, t->model, path);
    add_batches(&w, "x", t->x, t->x_rank, t->x_classes, 0);
    size_t before = w.bytes;
    add_batches(&w, "y", t->y, t->y_rank, t->y_classes, t->y_seed);
    change_batches(&w, t, before);
    sprintf(data, "%s/%s.safetensors", f->dir, t->model);
    writer_close(&w, data);
}

// Trains as tests/data/train/NAME.txt says; `more`: JSON members to add. want[]: PyTorch's losses.
static inline void arguments_loss(FILE *file, const char *loss, json_t *json)
{
    double smoothing, w;
    int ignored, axis, n = 0;
    json_t *weights = json_array();
    bool bce = strcmp(loss, "bce") == 0;
    if (fscanf(file, " options %lf %d %d %d", &smoothing, &ignored, &axis, &n) == 4 && !bce) {
        json_object_set_new(json, "label-smoothing", json_real(smoothing));
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(fscanf(file, "%lf", &w), 1);
        json_array_append_new(weights, json_real(w));
    }
    if (n > 0) {
        json_object_set(json, bce ? "pos-weight" : "class-weights", weights);
    }
    json_decref(weights);
}

static inline json_t *arguments_of(const training *t, const char *data, const char *more,
                                   double *want)
{
    char path[200], loss[16], optimizer[16];
    double lr, beta1, decay, clip, nesterov;
    int steps;
    snprintf(path, sizeof path, "tests/data/train/%s.txt", t->model);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%15s %15s %lf %lf %lf %lf %lf %d", loss, optimizer, &lr, &beta1,
                            &decay, &clip, &nesterov, &steps),
                     8);
    assert_int_equal(steps, STEPS);
    json_t *of_loss = json_object();
    arguments_loss(file, loss, of_loss);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(fscanf(file, " loss %lf", &want[i]), 1);
    }
    fclose(file);
    json_t *q = json_pack(
        "{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:b, s:b, s:i, s:i, s:s, s:i}", "model", t->model,
        "data", data, "loss", strcmp(loss, "xent") == 0 ? "softmax-xent" : loss, "optimizer",
        optimizer, "lr", lr, "weight-decay", decay, "clip", clip, "nesterov", nesterov != 0,
        "no-shuffle", 1, "batch", BATCH, "epochs", 1, "save-as", "result", "plan-ms", PLAN_MS);
    if (strcmp(optimizer, "momentum") == 0) {
        json_object_set_new(q, "momentum", json_real(beta1));
    }
    json_object_update(q, of_loss);
    json_decref(of_loss);
    json_t *extra = json_loads(more, 0, NULL);
    assert_non_null(extra);
    json_object_update(q, extra);
    json_decref(extra);
    return q;
}

// Asks; the answer's document, or NULL with the error left in *err.
static inline json_t *train(fixture *f, json_t *json, hth_err *err)
{
    char *text = json_dumps(json, JSON_COMPACT);
    call c = {.r = {.command = HTH_COMMAND_TRAIN,
                    .arguments = text,
                    .tenant = as_tenant,
                    .admin = as_admin}};
    *err = call_run(f->engine, &c);
    json_t *doc = *err == HTH_OK ? json_loads(c.r.json, 0, NULL) : NULL;
    hth_free(c.r.json);
    free(text);
    json_decref(json);
    return doc;
}

static inline void losses_of(json_t *doc, double *loss)
{
    json_t *history = json_object_get(doc, "history");
    assert_int_equal(json_array_size(history), STEPS);
    for (int i = 0; i < STEPS; i++) {
        loss[i] = json_number_value(json_array_get(json_array_get(history, (size_t)i), 0));
    }
}

static inline void expect(fixture *f, const training *t, const char *data, const char *more,
                          const char *words)
{
    double want[STEPS];
    hth_err err;
    json_t *doc = train(f, arguments_of(t, data, more, want), &err);
    assert_null(doc);
    if (strstr(hth_err_detail(), words) == NULL) {
        fail_msg("%s: '%s' is not in: %s", more, words, hth_err_detail());
    }
}

typedef struct witness {
    call c;
    int step, stop_at; // stop_at: the step behind which the request is canceled
    bool wait;         // instead, the job is held behind it, and behind each step that follows
    bool go, free;     // it may make a step; all of them
} witness;

// The job that is held. The engine's thread is: it takes nothing until the job may go.
static witness *witness_held;

static inline void witness_let(witness *w, bool all)
{
    if (w != NULL) {
        pthread_mutex_lock(&w->c.lock);
        w->go = true;
        w->free = w->free || all;
        pthread_cond_broadcast(&w->c.changed);
        pthread_mutex_unlock(&w->c.lock);
    }
}

// From here on the job that is held runs as fast as it can.
static inline void witness_let_go(void)
{
    witness_let(witness_held, true);
    witness_held = NULL;
}

static inline void witness_progress(hth_request *request, const char *what, uint64_t done,
                                    uint64_t total)
{
    witness *w = request->ctx;
    if (what[0] != '{' || (int)done < w->stop_at) {
        return;
    }
    if (!w->wait) {
        request->canceled = (int)done == w->stop_at ? 1 : request->canceled;
        return;
    }
    pthread_mutex_lock(&w->c.lock);
    w->step = (int)done;
    pthread_cond_broadcast(&w->c.changed);
    while (!w->go && !w->free) {
        pthread_cond_wait(&w->c.changed, &w->c.lock);
    }
    w->go = false;
    pthread_mutex_unlock(&w->c.lock);
}

// Trains up to `stop_at`, and leaves.
static inline void train_and_leave(fixture *f, json_t *json, int stop_at)
{
    char *text = json_dumps(json, JSON_COMPACT);
    witness w = {.stop_at = stop_at,
                 .c.r = {.command = HTH_COMMAND_TRAIN,
                         .arguments = text,
                         .progress = witness_progress,
                         .tenant = as_tenant,
                         .admin = as_admin}};
    assert_int_equal(call_run(f->engine, &w.c), HTH_ECANCELED);
    free(text);
    json_decref(json);
}

// A job that is held goes on with the question behind it: that is answered before its next step.
static inline json_t *ask(fixture *f, const char *query, const char *arguments, hth_err *err)
{
    call c = {.r = {.command = hth_command_find(query),
                    .arguments = arguments,
                    .tenant = as_tenant,
                    .admin = as_admin}};
    call_start(f->engine, &c);
    witness_let(witness_held, false);
    *err = call_wait(&c);
    json_t *doc = *err == HTH_OK ? json_loads(c.r.json, 0, NULL) : NULL;
    hth_free(c.r.json);
    return doc;
}

// logged tells whether a line of a job's log has these words.
static inline bool logged(fixture *f, const char *job, const char *words)
{
    char args[100];
    hth_err err;
    bool found = false;
    size_t i;
    json_t *line;
    snprintf(args, sizeof args, "{\"job\": \"%s\"}", job);
    json_t *doc = ask(f, "logs", args, &err);
    assert_ok(err);
    json_array_foreach(json_object_get(doc, "lines"), i, line)
    {
        found = found || strstr(json_string_value(json_object_get(line, "text")), words) != NULL;
    }
    json_decref(doc);
    return found;
}

static inline void same_losses(json_t *a, json_t *b, size_t n)
{
    const json_t *x = json_object_get(a, "history"), *y = json_object_get(b, "history");
    assert_int_equal(json_array_size(x), n);
    assert_int_equal(json_array_size(y), n);
    for (size_t i = 0; i < n; i++) {
        float u = (float)json_number_value(json_array_get(json_array_get(x, i), 0)),
              v = (float)json_number_value(json_array_get(json_array_get(y, i), 0));
        assert_memory_equal(&u, &v, sizeof u);
    }
}

// The same contents, hence the same ids.
static inline void same_tensors(fixture *f, const char *a, const char *b)
{
    hth_manifest x, y;
    assert_ok(hth_store_get(f->store, a, 0, &x));
    assert_ok(hth_store_get(f->store, b, 0, &y));
    assert_int_equal(x.n_tensors, y.n_tensors);
    for (int i = 0; i < x.n_tensors; i++) {
        assert_true(hth_id_equal(&x.tensors[i].id, &y.tensors[i].id));
    }
    hth_manifest_fini(&x);
    hth_manifest_fini(&y);
}

// Begins a job, which is then held behind its third step; one that was held goes on. `w` and `text`
// belong to it until it is answered.
static inline void train_three_steps(fixture *f, witness *w, const char *text)
{
    witness_let_go();
    *w = (witness){.stop_at = 3,
                   .wait = true,
                   .c = {.r = {.command = HTH_COMMAND_TRAIN,
                               .arguments = text,
                               .progress = witness_progress,
                               .tenant = as_tenant,
                               .admin = as_admin}}};
    call_start(f->engine, &w->c);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 300;
    pthread_mutex_lock(&w->c.lock);
    int rc = 0;
    while (w->step == 0 && rc == 0) {
        rc = pthread_cond_timedwait(&w->c.changed, &w->c.lock, &end);
    }
    pthread_mutex_unlock(&w->c.lock);
    witness_held = w;
    if (rc != 0) {
        hth_err err;
        json_t *jobs = ask(f, "jobs", "{}", &err);
        fail_msg("no third step after 300 s: %s", json_dumps(jobs, JSON_COMPACT | JSON_ENCODE_ANY));
    }
}

static inline void probe_done(hth_request *request)
{
    hth_free(request->json);
    free(request);
}

// A thread's: the job that is held goes on when the engine takes no more requests.
static inline void *let_go_at_the_end(void *engine)
{
    hth_request *r;
    do {
        usleep(1000);
        r = calloc(1, sizeof *r);
        *r = (hth_request){.command = HTH_COMMAND_JOBS, .arguments = "{}", .done = probe_done};
    } while (hth_engine_submit(engine, r) == HTH_OK);
    free(r);
    witness_let_go();
    return NULL;
}

// Closes the engine while a job is held: it makes no further step.
static inline void close_while_held(fixture *f)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, let_go_at_the_end, f->engine), 0);
    hth_engine_close(f->engine);
    pthread_join(thread, NULL);
}

#endif
