// SPDX-License-Identifier: Apache-2.0
// Training jobs through the engine: PyTorch's losses with all memory and with little, the same bits
// whatever leaves or is computed again, results that are served, and what bad input gets.
#include "server/train.h"
#include "tests/engine_call.h"

#include <jansson.h>
#include <math.h>

#define STEPS 6
#define BATCH 4

// A dataset file, tensors one behind the other.
typedef struct writer {
    json_t *head;
    char *data;
    size_t bytes;
} writer;

static void writer_add(writer *w, const char *name, const char *dtype, const int64_t *dim, int rank,
                       const void *data, size_t bytes)
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

static void writer_close(writer *w, const char *path)
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
static void add_batches(writer *w, const char *name, const int64_t *dim, int rank, int64_t classes,
                        int64_t seed)
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
    int64_t x[3];
    int x_rank; // batch included
    int64_t x_classes;
    int64_t y[2];
    int y_rank;
    int64_t y_classes, y_seed;
} training;

static const training image_net = {"net_momentum", {3, 12, 12}, 4, 0, {0}, 1, 4, 0};
static const training unet = {"unet_adam", {3, 12, 12}, 4, 0, {12, 12}, 3, 3, 0};
static const training encoder = {"encoder_adamw", {7}, 2, 30, {0}, 1, 5, 0};
static const training mobile = {"mobile_adam", {3, 12, 12}, 4, 0, {0}, 1, 4, 0};
static const training mlp = {"mlp_sgd", {12}, 2, 0, {2}, 2, 0, 9};
static const training mlp_inference = {"mlp_inference", {12}, 2, 0, {2}, 2, 0, 9};
static const training clipped = {"net_clip", {3, 12, 12}, 4, 0, {0}, 1, 4, 0};

static void prepare(fixture *f, const training *t, char *data)
{
    char path[200];
    writer w = {NULL, NULL, 0};
    snprintf(path, sizeof path, "tests/data/train/%s.onnx", t->model);
    put(f->store, t->model, path);
    add_batches(&w, "x", t->x, t->x_rank, t->x_classes, 0);
    add_batches(&w, "y", t->y, t->y_rank, t->y_classes, t->y_seed);
    sprintf(data, "%s/%s.safetensors", f->dir, t->model);
    writer_close(&w, data);
}

// Trains as tests/data/train/NAME.txt says; `more`: JSON members to add. want[]: PyTorch's losses.
static json_t *arguments_of(const training *t, const char *data, const char *more, double *want)
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
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(fscanf(file, " loss %lf", &want[i]), 1);
    }
    fclose(file);
    json_t *q =
        json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:b, s:b, s:i, s:i, s:s}", "model", t->model,
                  "data", data, "loss", strcmp(loss, "mse") == 0 ? "mse" : "softmax-xent",
                  "optimizer", optimizer, "lr", lr, "weight-decay", decay, "clip", clip, "nesterov",
                  nesterov != 0, "no-shuffle", 1, "batch", BATCH, "epochs", 1, "save-as", "result");
    if (strcmp(optimizer, "momentum") == 0) {
        json_object_set_new(q, "momentum", json_real(beta1));
    }
    json_t *extra = json_loads(more, 0, NULL);
    assert_non_null(extra);
    json_object_update(q, extra);
    json_decref(extra);
    return q;
}

// Asks; the answer's document, or NULL with the error left in *err.
static json_t *train(fixture *f, json_t *q, hth_err *err)
{
    char *text = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.query = "train", .arguments = text}};
    *err = call_run(f->engine, &c);
    json_t *doc = *err == HTH_OK ? json_loads(c.r.json, 0, NULL) : NULL;
    hth_free(c.r.json);
    free(text);
    json_decref(q);
    return doc;
}

static void losses_of(json_t *doc, double *loss)
{
    json_t *history = json_object_get(doc, "history");
    assert_int_equal(json_array_size(history), STEPS);
    for (int i = 0; i < STEPS; i++) {
        loss[i] = json_number_value(json_array_get(json_array_get(history, (size_t)i), 0));
    }
}

static void check_training(const training *t)
{
    static const char *const ways[] = {
        "{}", "{\"policy\": \"keep\"}",
        "{\"budget\": \"75%\", \"spill\": \"/tmp\", \"plan-ms\": 2000}",
        "{\"budget\": \"70%\", \"plan-ms\": 2000}",
        "{\"budget\": \"80%\", \"policy\": \"str-auto\", \"plan-ms\": 2000}"};
    fixture f;
    char data[200];
    double want[STEPS], loss[STEPS], whole[STEPS];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, t, data);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        hth_err err;
        json_t *doc = train(&f, arguments_of(t, data, ways[k], want), &err);
        if (doc == NULL) {
            fail_msg("%s %s: %s", t->model, ways[k], hth_err_detail());
        }
        json_int_t peak = json_integer_value(json_object_get(doc, "peak_bytes")),
                   budget = json_integer_value(json_object_get(doc, "budget_bytes"));
        assert_true(peak > 0 && peak <= budget);
        losses_of(doc, loss);
        for (int i = 0; i < STEPS; i++) {
            if (fabs(loss[i] - want[i]) > 2e-4 * fabs(want[i]) + 1e-5) {
                fail_msg("%s %s: loss %d is %g, PyTorch's is %g", t->model, ways[k], i, loss[i],
                         want[i]);
            }
        }
        if (k == 0) {
            memcpy(whole, loss, sizeof whole);
        } else if (k == 1) { // the same algorithms: the same bits
            assert_memory_equal(whole, loss, sizeof whole);
        }
        json_decref(doc);
    }
    fixture_close(&f);
}

static void losses_are_pytorchs(void **state)
{
    check_training(&mlp);
    check_training(&mlp_inference);
    check_training(&encoder);
    check_training(&image_net);
    check_training(&clipped);
    check_training(&unet);
    check_training(&mobile);
}

// What was trained is a version like any other, and one of a training export is served as for
// inference: the answer to a sample does not depend on its neighbours in the batch.
static void results_are_served(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    json_t *doc = train(&f, arguments_of(&image_net, data, "{}", want), &err);
    assert_non_null(doc);
    assert_int_equal(json_integer_value(json_object_get(doc, "version")), 1);
    json_decref(doc);
    float x[2 * 432], y[2][8];
    for (int i = 0; i < 2 * 432; i++) {
        x[i] = (float)(i % 37 - 18) / 16;
    }
    for (int n = 1; n <= 2; n++) {
        hth_request_tensor in = {.t = {.dtype = HTH_DT_F32,
                                       .shape = {.rank = 4, .dim = {n, 3, 12, 12}},
                                       .data = x,
                                       .bytes = (size_t)n * 432 * 4}};
        call c = {.r = {.model = "result", .inputs = &in, .n_inputs = 1}};
        assert_ok(call_run(f.engine, &c));
        memcpy(y[n - 1], c.out[0].data, (size_t)n * 16);
        free(c.out[0].data);
    }
    for (int i = 0; i < 4; i++) {
        assert_float_equal(y[0][i], y[1][i], 1e-5);
    }
    fixture_close(&f);
}

static void expect(fixture *f, const char *data, const char *more, const char *words)
{
    double want[STEPS];
    hth_err err;
    json_t *doc = train(f, arguments_of(&image_net, data, more, want), &err);
    assert_null(doc);
    if (strstr(hth_err_detail(), words) == NULL) {
        fail_msg("%s: '%s' is not in: %s", more, words, hth_err_detail());
    }
}

static void bad_input_is_told(void **state)
{
    fixture f;
    char data[200], other[200];
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    expect(&f, data, "{\"loss\": \"hinge\"}", "loss 'hinge' is none of softmax-xent, mse");
    expect(&f, data, "{\"optimizer\": \"lion\"}", "sgd, momentum, adam, adamw");
    expect(&f, data, "{\"lr\": -1}", "lr is a number from 0");
    expect(&f, data, "{\"batch\": 0}", "batch is a number from 1");
    expect(&f, data, "{\"policy\": \"magic\"}", "no policy is called 'magic'");
    expect(&f, data, "{\"model\": \"nobody\"}", "nobody");
    expect(&f, data, "{\"data\": \"/nowhere.safetensors\"}", "/nowhere.safetensors");
    expect(&f, data, "{\"budget\": \"4KiB\"}", "needs at least");
    expect(&f, data, "{\"lr\": 1e6, \"weight-decay\": 1e6}", "training stops, nothing is saved");
    expect(&f, data, "{\"loss\": \"mse\"}", "targets are");
    const struct {
        int64_t x[3];
        int64_t classes;
        const char *words;
    } bad[] = {{{3, 12, 12}, 9, "out of range: the model has 4 classes"}, {{2, 12, 12}, 4, "'x'"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        writer w = {NULL, NULL, 0};
        int64_t none[1] = {0};
        add_batches(&w, "x", bad[i].x, 4, 0, 0);
        add_batches(&w, "y", none, 1, bad[i].classes, 0);
        snprintf(other, sizeof other, "%s/bad.safetensors", f.dir);
        writer_close(&w, other);
        char more[300];
        snprintf(more, sizeof more, "{\"data\": \"%s\"}", other);
        expect(&f, other, more, bad[i].words);
    }
    hth_manifest m;
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT); // nothing was saved
    fixture_close(&f);
}

// By hand; torch.optim.lr_scheduler gives the same.
static void rates_follow_their_schedule(void **state)
{
    hth_train_spec s = {.lr = 0.8, .schedule = HTH_RATE_STEP, .gamma = 0.5, .every = 2};
    assert_float_equal(hth_train_rate(&s, 0, 60, 10), 0.8, 1e-12);
    assert_float_equal(hth_train_rate(&s, 19, 60, 10), 0.8, 1e-12);
    assert_float_equal(hth_train_rate(&s, 20, 60, 10), 0.4, 1e-12);
    assert_float_equal(hth_train_rate(&s, 59, 60, 10), 0.2, 1e-12);
    s.schedule = HTH_RATE_COSINE;
    assert_float_equal(hth_train_rate(&s, 30, 60, 10), 0.4, 1e-12);
    assert_float_equal(hth_train_rate(&s, 20, 60, 10), 0.6, 1e-12);
    s.schedule = HTH_RATE_LINEAR;
    assert_float_equal(hth_train_rate(&s, 15, 60, 10), 0.6, 1e-12);
    s.warmup = 4;
    s.schedule = HTH_RATE_CONSTANT;
    assert_float_equal(hth_train_rate(&s, 0, 60, 10), 0.2, 1e-12);
    assert_float_equal(hth_train_rate(&s, 4, 60, 10), 0.8, 1e-12);
}

// Frozen parameters keep their content ids; the others do not.
static void frozen_parameters_stay(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    hth_manifest before, after;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_t *doc = train(&f, arguments_of(&mlp, data, "{\"freeze\": [\"0.*\"]}", want), &err);
    assert_non_null(doc);
    json_decref(doc);
    assert_ok(hth_store_get(f.store, "mlp_sgd", 0, &before));
    assert_ok(hth_store_get(f.store, "result", 0, &after));
    assert_int_equal(before.n_tensors, after.n_tensors);
    int frozen = 0, trained = 0;
    for (int i = 0; i < before.n_tensors; i++) {
        bool same = hth_id_equal(&before.tensors[i].id, &after.tensors[i].id);
        assert_int_equal(same, strncmp(before.tensors[i].name, "0.", 2) == 0);
        *(same ? &frozen : &trained) += 1;
    }
    assert_true(frozen == 2 && trained == 4);
    hth_manifest_fini(&before);
    hth_manifest_fini(&after);
    fixture_close(&f);
}

static void stop_at_seven(hth_request *r, const char *what, uint64_t done, uint64_t total)
{
    if (what[0] == '{' && done == 7) {
        r->canceled = true;
    }
}

// A job that ends behind step 7 goes on from step 6 and has, bit by bit, the losses of one that ran
// through: order of the samples, a shorter last batch, optimizer state, running statistics.
static void a_checkpoint_repeats_the_losses(void **state)
{
    static const char more[] = "{\"batch\": 5, \"epochs\": 3, \"no-shuffle\": false, "
                               "\"seed\": 3, \"schedule\": \"cosine\", "
                               "\"checkpoint-every\": 3, \"resume\": true, \"lr\": 0.01}";
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &unet, data);
    json_t *whole = train(&f, arguments_of(&unet, data, more, want), &err);
    assert_non_null(whole);
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    json_t *q = arguments_of(&unet, data, more, want);
    char *text = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.query = "train", .arguments = text, .progress = stop_at_seven}};
    assert_int_equal(call_run(f.engine, &c), HTH_ECANCELED);
    assert_non_null(strstr(hth_err_detail(), "the checkpoint of step 6 is kept"));
    free(text);
    assert_ok(hth_store_get(f.store, "result.checkpoint", 0, &m));
    int version = m.version;
    hth_manifest_fini(&m);
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", version - 1, &m), HTH_ENOENT);
    json_object_set_new(q, "lr", json_real(0.5));
    assert_null(train(&f, q, &err));
    assert_non_null(strstr(hth_err_detail(), "of another job: 'lr'"));
    json_t *rest = train(&f, arguments_of(&unet, data, more, want), &err);
    assert_non_null(rest);
    json_t *a = json_object_get(whole, "history"), *b = json_object_get(rest, "history");
    assert_int_equal(json_array_size(a), 15);
    assert_int_equal(json_array_size(b), 15);
    for (size_t i = 0; i < 15; i++) {
        double x = json_number_value(json_array_get(json_array_get(a, i), 0)),
               y = json_number_value(json_array_get(json_array_get(b, i), 0));
        if (x != y) {
            fail_msg("loss %zu is %.9g, after a checkpoint %.9g", i, x, y);
        }
    }
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    json_decref(whole);
    json_decref(rest);
    fixture_close(&f);
}

// Checkpoints.

typedef struct witness {
    call c;
    int step, stop_at; // stop_at: the step behind which the request is canceled
    bool wait;         // stop_at: instead, the step is said to be reached, and takes a while
} witness;

static void witness_progress(hth_request *r, const char *what, uint64_t done, uint64_t total)
{
    witness *w = r->ctx;
    if (what[0] != '{' || (int)done != w->stop_at) {
        return;
    }
    if (!w->wait) {
        r->canceled = 1;
        return;
    }
    pthread_mutex_lock(&w->c.lock);
    w->step = (int)done;
    pthread_cond_signal(&w->c.changed);
    pthread_mutex_unlock(&w->c.lock);
    usleep(200000);
}

// Trains up to `stop_at`, and leaves.
static void train_and_leave(fixture *f, json_t *q, int stop_at)
{
    char *text = json_dumps(q, JSON_COMPACT);
    witness w = {.stop_at = stop_at,
                 .c.r = {.query = "train", .arguments = text, .progress = witness_progress}};
    assert_int_equal(call_run(f->engine, &w.c), HTH_ECANCELED);
    free(text);
    json_decref(q);
}

static json_t *ask(fixture *f, const char *query, const char *arguments, hth_err *err)
{
    call c = {.r = {.query = query, .arguments = arguments}};
    *err = call_run(f->engine, &c);
    json_t *doc = *err == HTH_OK ? json_loads(c.r.json, 0, NULL) : NULL;
    hth_free(c.r.json);
    return doc;
}

static void same_losses(json_t *a, json_t *b, size_t n)
{
    const json_t *x = json_object_get(a, "history"), *y = json_object_get(b, "history");
    assert_int_equal(json_array_size(x), n);
    assert_int_equal(json_array_size(y), n);
    for (size_t i = 0; i < n; i++) {
        double u = json_number_value(json_array_get(json_array_get(x, i), 0)),
               v = json_number_value(json_array_get(json_array_get(y, i), 0));
        assert_memory_equal(&u, &v, sizeof u);
    }
}

// The same contents, hence the same ids.
static void same_tensors(fixture *f, const char *a, const char *b)
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

static void expect_jobs(fixture *f, size_t n)
{
    hth_err err;
    json_t *jobs = ask(f, "jobs", "{}", &err);
    assert_true(json_is_array(jobs));
    assert_int_equal(json_array_size(jobs), n);
    json_decref(jobs);
}

// A job that is gone on with by its name ends as if it had not stopped: behind an epoch's end, in
// one, with Adam's moments, running statistics and dropout's random numbers.
static void jobs_go_on_by_name(void **state)
{
    static const struct {
        const training *t;
        const char *every;
        int stop_at, saved;
    } cuts[] = {
        {&mobile, "4", 7, 5}, {&mobile, "4", 9, 8}, {&encoder, "100", 14, 10}, {&mlp, "1", 1, 1}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        fixture f;
        char data[200], more[300];
        double want[STEPS];
        hth_err err;
        fixture_open(&f, "cpu:mem=256MiB,threads=2");
        prepare(&f, cuts[i].t, data);
        const char *base = "\"no-shuffle\": false, \"seed\": 7, \"batch\": 5, \"epochs\": 3, "
                           "\"schedule\": \"cosine\", \"warmup\": 2";
        snprintf(more, sizeof more, "{%s, \"save-as\": \"whole\"}", base);
        json_t *whole = train(&f, arguments_of(cuts[i].t, data, more, want), &err);
        assert_non_null(whole);
        snprintf(more, sizeof more, "{%s, \"checkpoint-every\": %s}", base, cuts[i].every);
        train_and_leave(&f, arguments_of(cuts[i].t, data, more, want), cuts[i].stop_at);
        expect_jobs(&f, 1);
        json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
        assert_int_equal(json_integer_value(json_object_get(job, "step")), cuts[i].saved);
        assert_int_equal(json_integer_value(json_object_get(job, "steps")), 15);
        assert_string_equal(json_string_value(json_object_get(job, "state")), "stopped");
        json_decref(job);
        json_t *rest = train(&f, json_pack("{s:s}", "job", "result"), &err);
        if (rest == NULL) {
            fail_msg("%s", hth_err_detail());
        }
        same_losses(whole, rest, 15);
        same_tensors(&f, "whole", "result");
        expect_jobs(&f, 0);
        json_decref(rest);
        json_decref(whole);
        fixture_close(&f);
    }
}

// A job that fails keeps its last checkpoint; canceled by its number it leaves nothing.
static void failed_jobs_keep_their_checkpoint(void **state)
{
    fixture f;
    char data[200];
    hth_err err;
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    expect(&f, data, "{\"lr\": 1e6, \"weight-decay\": 1e6, \"checkpoint-every\": 1}",
           "training stops, the checkpoint of step ");
    json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
    assert_non_null(strstr(json_string_value(json_object_get(job, "why")), "the loss of step"));
    json_decref(job);
    json_t *q = json_pack("{s:s, s:s}", "job", "result", "optimizer", "adam");
    assert_null(train(&f, q, &err));
    assert_non_null(strstr(hth_err_detail(), "of another job: 'optimizer'"));
    assert_ok(hth_store_get(f.store, "result.checkpoint", 0, &m));
    hth_manifest_fini(&m);
    json_decref(ask(&f, "cancel", "{\"job\": \"result\"}", &err));
    assert_ok(err);
    expect_jobs(&f, 0);
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    assert_null(train(&f, json_pack("{s:s}", "job", "result"), &err));
    assert_non_null(strstr(hth_err_detail(), "job 'result' has no checkpoint"));
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    fixture_close(&f);
}

// Begins a job and waits for its third step; `w` and `text` belong to it until it is answered.
static void train_three_steps(fixture *f, witness *w, const char *text)
{
    *w = (witness){.stop_at = 3,
                   .wait = true,
                   .c = {.r = {.query = "train",
                               .arguments = text,
                               .progress = witness_progress,
                               .done = call_done,
                               .ctx = w}}};
    pthread_mutex_init(&w->c.lock, NULL);
    pthread_cond_init(&w->c.changed, NULL);
    assert_ok(hth_engine_submit(f->engine, &w->c.r));
    pthread_mutex_lock(&w->c.lock);
    while (w->step == 0) {
        pthread_cond_wait(&w->c.changed, &w->c.lock);
    }
    pthread_mutex_unlock(&w->c.lock);
}

// An engine that ends takes its jobs along; the next one goes on with them, unasked. One that is
// canceled at work is gone.
static void engines_go_on_with_jobs(void **state)
{
    fixture f;
    witness w;
    char data[200], *text;
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    json_decref(train(&f, arguments_of(&image_net, data, "{\"save-as\": \"whole\"}", want), &err));
    json_t *q = arguments_of(&image_net, data, "{\"checkpoint-every\": 2}", want);
    text = json_dumps(q, JSON_COMPACT);
    json_decref(q);
    train_three_steps(&f, &w, text);
    json_t *row = ask(&f, "cancel", "{\"job\": \"result\"}", &err);
    assert_int_equal(json_integer_value(json_object_get(row, "step")), 3);
    json_decref(row);
    assert_true(w.c.finished);
    assert_int_equal(w.c.r.err, HTH_ECANCELED);
    expect_jobs(&f, 0);
    train_three_steps(&f, &w, text);
    hth_engine_close(f.engine);
    assert_true(w.c.finished);
    assert_int_equal(w.c.r.err, HTH_ECANCELED);
    put(f.store, "net_momentum", "tests/data/train/net_clip.onnx"); // not what the job trains
    put(f.store, "net_momentum", "tests/data/train/mlp_sgd.onnx");
    free(text);
    hth_engine_config config = {.device = "cpu:mem=256MiB,threads=2", .resume = true};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    size_t left = 1;
    for (int i = 0; i < 500 && left > 0; i++) {
        json_t *jobs = ask(&f, "jobs", "{}", &err);
        left = json_array_size(jobs);
        json_decref(jobs);
        usleep(10000);
    }
    assert_int_equal(left, 0);
    same_tensors(&f, "whole", "result");
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_pytorchs),
        cmocka_unit_test(results_are_served),
        cmocka_unit_test(bad_input_is_told),
        cmocka_unit_test(rates_follow_their_schedule),
        cmocka_unit_test(frozen_parameters_stay),
        cmocka_unit_test(a_checkpoint_repeats_the_losses),
        cmocka_unit_test(jobs_go_on_by_name),
        cmocka_unit_test(failed_jobs_keep_their_checkpoint),
        cmocka_unit_test(engines_go_on_with_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
