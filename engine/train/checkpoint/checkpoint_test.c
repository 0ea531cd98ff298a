// SPDX-License-Identifier: Apache-2.0
// Jobs that end before their time: what is kept of them, and that they go on as if they had not.
#include "base/settings.h"
#include "modelstore/file.h"
#include "engine/train/checkpoint/checkpoint.h"
#include "engine/train/queue/train_ended.h"
#include "tests/rig/record_damage.h"
#include "tests/rig/train_job.h"

#include <errno.h>
#include <unistd.h>

static void stop_at_seven(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    if (what[0] == '{' && done == 7) {
        request->canceled = true;
    }
}

// A job that ends after step 7 continues from step 6 and has, bit by bit, the losses of one that
// ran through: order of the samples, a shorter last batch, optimizer state, running statistics.
static void a_checkpoint_repeats_the_losses(void **state)
{
    static const char more[] = "{\"batch\": 5, \"epochs\": 3, \"no-shuffle\": false, "
                               "\"seed\": 3, \"schedule\": \"cosine\", "
                               "\"checkpoint-every\": 3, \"lr\": 0.01}";
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
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = stop_at_seven}};
    assert_int_equal(call_run(f.engine, &c), HTH_ECANCELED);
    assert_non_null(strstr(hth_err_detail(), "the checkpoint of step 7 is kept"));
    free(text);
    assert_ok(hth_store_get(f.store, "result.checkpoint", 0, &m));
    int version = m.version;
    hth_manifest_fini(&m);
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", version - 2, &m), HTH_ENOENT);
    json_object_set_new(q, "resume", json_true());
    json_object_set_new(q, "lr", json_real(0.5));
    assert_null(train(&f, q, &err));
    assert_non_null(strstr(hth_err_detail(), "another job: 'lr'"));
    q = arguments_of(&unet, data, more, want);
    json_object_set_new(q, "resume", json_true());
    json_t *rest = train(&f, q, &err);
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

static void expect_jobs(fixture *f, size_t n)
{
    hth_err err;
    json_t *jobs = ask(f, "jobs", "{}", &err);
    size_t live = 0, i;
    json_t *row;
    assert_true(json_is_array(jobs));
    json_array_foreach(jobs, i, row)
    {
        live += json_is_null(json_object_get(row, "ended_ns"));
    }
    assert_int_equal(live, n);
    json_decref(jobs);
}

// A job that is gone on with by its name ends as if it had not stopped: after an epoch's end, in
// one, with Adam's moments, running statistics and dropout's random numbers.
static void jobs_go_on_by_name(void **state)
{
    static const struct {
        const training *t;
        const char *every;
        int stop_at, saved;
    } cuts[] = {
        {&mobile, "4", 7, 7}, {&mobile, "4", 9, 9}, {&encoder, "0", 14, 14}, {&mlp, "1", 1, 1}};
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
        expect_jobs(&f, 0);
        json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
        assert_int_equal(json_integer_value(json_object_get(job, "step")), cuts[i].saved);
        assert_int_equal(json_integer_value(json_object_get(job, "steps")), 15);
        assert_string_equal(json_string_value(json_object_get(job, "state")), "canceled");
        assert_true(json_is_true(json_object_get(job, "resumable")));
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

// A job that fails keeps its last checkpoint, also when it is canceled then, until that is removed.
static void failed_jobs_keep_their_checkpoint(void **state)
{
    fixture f;
    char data[200];
    hth_err err;
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &image_net, data);
    expect(&f, &image_net, data, "{\"lr\": 1e4, \"weight-decay\": 1e4, \"checkpoint-every\": 1}",
           "training stops, the checkpoint of step ");
    json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
    const char *why = strstr(json_string_value(json_object_get(job, "why")), "step ");
    long long lost, kept;
    assert_non_null(why);
    assert_int_equal(sscanf(why, "step %lld", &lost), 1);
    assert_int_equal(sscanf(strstr(why, "the checkpoint"), "the checkpoint of step %lld", &kept),
                     1);
    assert_int_equal(json_integer_value(json_object_get(job, "step")), kept);
    // A step from it had a finite loss: the one after it, of the very state that was lost, is
    // gone.
    assert_true(lost > 2 && kept == lost - 2);
    json_decref(job);
    json_t *resumed = json_pack("{s:s}", "job", "result");
    assert_null(train(&f, resumed, &err)); // ends at the same step
    assert_non_null(strstr(hth_err_detail(), "training stops"));
    assert_int_equal(sscanf(strstr(hth_err_detail(), "step "), "step %lld", &kept), 1);
    assert_int_equal(kept, lost);
    const char *told = strstr(hth_err_detail(), "the checkpoint"); // .. and with the same one
    assert_non_null(told);
    assert_int_equal(sscanf(told, "the checkpoint of step %lld", &kept), 1);
    assert_int_equal(kept, lost - 2);
    json_t *q = json_pack("{s:s, s:s}", "job", "result", "schedule", "cosine");
    assert_null(train(&f, q, &err));
    assert_non_null(strstr(hth_err_detail(), "another job: 'schedule'"));
    assert_ok(hth_store_get(f.store, "result.checkpoint", 0, &m));
    hth_manifest_fini(&m);
    json_decref(ask(&f, "cancel", "{\"job\": \"result\"}", &err));
    assert_ok(err);
    expect_jobs(&f, 0);
    job = ask(&f, "job", "{\"job\": \"result\"}", &err);
    assert_string_equal(json_string_value(json_object_get(job, "state")), "canceled");
    assert_true(json_is_true(json_object_get(job, "resumable")));
    json_decref(job);
    assert_ok(hth_checkpoint_rm(f.store, "result"));
    job = ask(&f, "job", "{\"job\": \"result\"}", &err);
    assert_string_equal(json_string_value(json_object_get(job, "state")), "canceled");
    assert_false(json_is_true(json_object_get(job, "resumable")));
    json_decref(job);
    assert_null(ask(&f, "cancel", "{\"job\": \"result\"}", &err));
    assert_non_null(strstr(hth_err_detail(), "has ended already"));
    assert_null(train(&f, json_pack("{s:s}", "job", "result"), &err));
    assert_non_null(strstr(hth_err_detail(), "job 'result' has no checkpoint"));
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    fixture_close(&f);
}

// A checkpoint that is removed is gone, although nothing can be collected while another model's
// record is damaged: a job whose result is stored does not fail because of that.
static void what_is_forgotten_is_gone(void **state)
{
    fixture f;
    hth_manifest m;
    uint64_t files, bytes;
    float x[64] = {0};
    const hth_put_tensor tensor = {
        .name = "x", .dtype = HTH_DT_F32, .shape = {1, {64}}, .data = x, .bytes = sizeof x};
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    assert_ok(hth_checkpoint_put(f.store, "other", "{\"mark\": \"is damaged soon\"}", &tensor, 1));
    assert_ok(hth_checkpoint_put(f.store, "result.checkpoint", "{}", &tensor, 1));
    record_damage(f.dir, "is damaged soon");
    assert_ok(hth_checkpoint_forget(f.store, "result.checkpoint", 0));
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    assert_int_equal(hth_store_gc(f.store, &files, &bytes), HTH_ECORRUPT);
    fixture_close(&f);
}

// A disk that is full from one step on, to another one; and what the job says of it.
typedef struct disk {
    call c;
    uint64_t from, to; // steps; to 0: until disk_empty
    int warnings;
    char last[600];
    bool stuck; // it said that nothing could be stored
} disk;

static void disk_progress(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    disk *d = request->ctx;
    json_t *o = json_loads(what, 0, NULL);
    const char *warning = json_string_value(json_object_get(o, "warning"));
    if (warning != NULL) {
        pthread_mutex_lock(&d->c.lock);
        d->warnings++;
        snprintf(d->last, sizeof d->last, "%s", warning);
        d->stuck = d->stuck || strstr(warning, "nor a checkpoint") != NULL;
        pthread_cond_signal(&d->c.changed);
        pthread_mutex_unlock(&d->c.lock);
    } else if (json_object_get(o, "step") != NULL && (done == d->from || done == d->to)) {
        hth_store_file_full(done == d->from);
    }
    json_decref(o);
}

static void disk_begin(fixture *f, disk *d, char *data)
{
    assert_ok(hth_setting_set("store.inline_bytes", "0")); // every tensor is a file
    fixture_open(f, "cpu:mem=256MiB,threads=2");
    prepare(f, &mlp, data);
}

static void disk_end(fixture *f)
{
    hth_store_file_full(false);
    hth_setting_reset();
    fixture_close(f);
}

static void disk_start(fixture *f, disk *d, const char *text)
{
    d->c.r =
        (hth_request){.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = disk_progress};
    call_start(f->engine, &d->c);
}

// disk_until_stuck waits until a job has said that its result is nowhere but in memory.
static void disk_until_stuck(disk *d)
{
    pthread_mutex_lock(&d->c.lock);
    while (!d->stuck && !d->c.finished) {
        pthread_cond_wait(&d->c.changed, &d->c.lock);
    }
    assert_false(d->c.finished);
    pthread_mutex_unlock(&d->c.lock);
}

static void expect_stuck(fixture *f)
{
    hth_err err;
    json_t *row = ask(f, "job", "{\"job\": \"result\"}", &err);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "paused");
    const char *why = json_string_value(json_object_get(row, "why"));
    assert_non_null(strstr(why, "its result could not be saved, nor a checkpoint: "));
    assert_non_null(strstr(why, "`hearth resume result` tries again"));
    json_decref(row);
    assert_null(ask(f, "train", "{\"model\":\"mlp_sgd\",\"save-as\":\"result\"}", &err));
    assert_err(err, HTH_EBUSY, "job 'result' is paused already");
}

// A checkpoint that cannot be written costs nothing: the job says so, and writes the next one.
static void checkpoints_that_fail_are_tried_again(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    disk d = {.from = 3, .to = 9};
    hth_manifest m;
    disk_begin(&f, &d, data);
    json_decref(
        train(&f, arguments_of(&mlp, data, "{\"batch\": 1, \"save-as\": \"whole\"}", want), &err));
    json_t *q = arguments_of(&mlp, data, "{\"batch\": 1, \"checkpoint-every\": 1}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    disk_start(&f, &d, text);
    assert_ok(call_wait(&d.c));
    assert_int_equal(d.warnings, 1); // of those of steps 3 to 8
    assert_non_null(strstr(d.last, "job 'result': its last checkpoint could not be written; the "
                                   "next one is due at its usual time: "));
    assert_non_null(strstr(d.last, "No space left on device"));
    same_tensors(&f, "whole", "result");
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    hth_free(d.c.r.json);
    free(text);
    json_decref(q);
    disk_end(&f);
}

// A change of the store's files that fails, the `at`-th from step 6 on; and what the job says of
// it.
typedef struct fault {
    call c;
    hth_store *store;
    uint64_t at;
    int warnings;
    int64_t saved; // the step that is in the store when it says so
} fault;

// checkpoint_step is the step of the checkpoint in the store, 0: there is none.
static int64_t checkpoint_step(hth_store *store)
{
    hth_manifest m;
    if (hth_store_get(store, "result.checkpoint", 0, &m) != HTH_OK) {
        return 0;
    }
    json_t *doc = json_loads(m.meta, 0, NULL);
    int64_t step = json_integer_value(json_object_get(doc, "step"));
    json_decref(doc);
    hth_manifest_fini(&m);
    return step;
}

static void fault_progress(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    fault *x = request->ctx;
    if (strstr(what, "\"warning\"") != NULL) {
        x->warnings++;
        x->saved = checkpoint_step(x->store);
    } else if (done == 6 && strstr(what, "\"step\"") != NULL) {
        while (checkpoint_step(x->store) != 3) { // its writer has a thread of its own
            usleep(1000);
        }
        hth_store_file_fault(x->at, ENOSPC);
    }
}

// Whichever change of the store's files fails, a job says that a checkpoint could not be written
// where that is so, once, and nowhere else: an older one that cannot be removed is no trouble.
static void a_checkpoint_is_missed_where_it_is(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    int turns = 0;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    static const char whole[] = "{\"batch\": 2, \"epochs\": 2, \"save-as\": \"whole\"}",
                      job[] = "{\"batch\": 2, \"epochs\": 2, \"checkpoint-every\": 3}";
    json_decref(train(&f, arguments_of(&mlp, data, whole, want), &err));
    json_t *q = arguments_of(&mlp, data, job, want);
    char *text = json_dumps(q, JSON_COMPACT);
    // those of the checkpoint of step 6, of removing that of step 3, of the checkpoint of step 9
    for (uint64_t at = 1, before = 1; turns < 2; at += 4) {
        fault x = {.store = f.store, .at = at};
        x.c.r = (hth_request){
            .command = HTH_COMMAND_TRAIN, .arguments = text, .progress = fault_progress};
        assert_true(at < 100);
        assert_ok(call_run(f.engine, &x.c));
        hth_free(x.c.r.json);
        assert_in_range(x.warnings, 0, 1);
        int missed = turns == 0 ? 3 : 6;
        assert_int_equal(x.saved, x.warnings == 0 ? 0 : missed);
        turns += (uint64_t)x.warnings != before;
        before = (uint64_t)x.warnings;
    }
    hth_store_file_fault(0, 0);
    same_tensors(&f, "whole", "result");
    free(text);
    json_decref(q);
    fixture_close(&f);
}

static void fail_next_file(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    if (what[0] == '{' && done == total) {
        hth_store_file_fault(1, ENOSPC);
    }
}

// A result that cannot be saved becomes a checkpoint, from which it is saved later, without a step.
static void a_result_that_fails_is_a_checkpoint(void **state)
{
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    hth_manifest m;
    assert_ok(hth_setting_set("store.inline_bytes", "0"));
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_decref(train(&f, arguments_of(&mlp, data, "{\"save-as\": \"whole\"}", want), &err));
    json_t *q = arguments_of(&mlp, data, "{}", want);
    char *text = json_dumps(q, JSON_COMPACT);
    call c = {.r = {.command = HTH_COMMAND_TRAIN, .arguments = text, .progress = fail_next_file}};
    assert_err(call_run(f.engine, &c), HTH_EIO,
               "; its checkpoint of step 6 is kept: `hearth train --resume result` saves it");
    assert_non_null(strstr(hth_err_detail(), "the result of job 'result' could not be saved: "));
    assert_non_null(strstr(hth_err_detail(), "No space left on device"));
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    json_t *doc = train(&f, json_pack("{s:s}", "job", "result"), &err);
    assert_ok(err);
    assert_int_equal(json_array_size(json_object_get(doc, "history")), STEPS);
    assert_int_equal(json_integer_value(json_object_get(doc, "steps")), STEPS);
    json_decref(doc);
    same_tensors(&f, "whole", "result");
    assert_int_equal(hth_store_get(f.store, "result.checkpoint", 0, &m), HTH_ENOENT);
    free(text);
    json_decref(q);
    hth_setting_reset();
    fixture_close(&f);
}

// Where not even that can be written, it stays in memory until there is room and somebody says so,
// also when its client does not wait for that.
static void a_result_waits_for_room(void **state)
{
    for (int leaves = 0; leaves < 2; leaves++) {
        fixture f;
        char data[200];
        double want[STEPS];
        hth_err err;
        disk d = {.from = STEPS};
        hth_manifest m;
        disk_begin(&f, &d, data);
        json_decref(train(&f, arguments_of(&mlp, data, "{\"save-as\": \"whole\"}", want), &err));
        json_t *q = arguments_of(&mlp, data, "{}", want);
        char *text = json_dumps(q, JSON_COMPACT);
        disk_start(&f, &d, text);
        disk_until_stuck(&d);
        expect_stuck(&f);
        if (leaves) {
            d.c.r.canceled = 1;
            assert_err(call_wait(&d.c), HTH_ECANCELED,
                       "its result could not be saved, nor a checkpoint");
            expect_stuck(&f);
        }
        json_decref(ask(&f, "resume", "{\"job\": \"result\"}", &err)); // there is still none
        assert_ok(err);
        json_decref(ask(&f, "jobs", "{}", &err));
        expect_stuck(&f);
        hth_store_file_full(false);
        json_decref(ask(&f, "resume", "{\"job\": \"result\"}", &err));
        assert_ok(err);
        if (!leaves) {
            assert_ok(call_wait(&d.c));
        }
        while (hth_store_get(f.store, "result", 0, &m) == HTH_ENOENT) {
            json_decref(ask(&f, "jobs", "{}", &err)); // a turn of the engine
        }
        hth_manifest_fini(&m);
        same_tensors(&f, "whole", "result");
        hth_free(d.c.r.json);
        free(text);
        json_decref(q);
        disk_end(&f);
    }
}

// Who asks to go on, goes on: without a checkpoint nothing begins.
static void nothing_to_resume(void **state)
{
    fixture f;
    char data[200];
    hth_manifest m;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    expect(&f, &mlp, data, "{\"resume\": true}",
           "job 'result' has no checkpoint to resume from; without --resume it starts over");
    assert_int_equal(hth_store_get(f.store, "result", 0, &m), HTH_ENOENT);
    expect_jobs(&f, 0);
    fixture_close(&f);
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
    close_while_held(&f);
    assert_true(w.c.finished);
    assert_int_equal(w.c.r.err, HTH_ECANCELED);
    put(f.store, "net_momentum", "tests/data/train/net_clip.onnx"); // not what the job trains
    put(f.store, "net_momentum", "tests/data/train/mlp_sgd.onnx");
    free(text);
    hth_engine_config config = {
        .device = "cpu:mem=256MiB,threads=2", .resume = true, .event = events_event};
    assert_ok(hth_engine_open(&config, f.store, &f.engine));
    bool ended = false;
    for (uint64_t seen = 0; !ended;) {
        json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
        ended = strcmp(json_string_value(json_object_get(job, "state")), "finished") == 0;
        json_decref(job);
        if (!ended) {
            events_wait(&seen);
        }
    }
    same_tensors(&f, "whole", "result");
    fixture_close(&f);
}

// What ended is kept with its losses: by name the last one, by number each, and in the next engine,
// too.
static void ended_jobs_are_kept(void **state)
{
    static const char *const words[] = {"failed", "finished"};
    fixture f;
    char data[200], name[40];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_t *doc = train(&f, arguments_of(&mlp, data, "{}", want), &err);
    assert_non_null(doc);
    assert_null(
        train(&f, arguments_of(&mlp, data, "{\"lr\": 1e6, \"weight-decay\": 1e6}", want), &err));
    assert_null(train(&f, arguments_of(&mlp, data, "{\"lr\": -1}", want), &err)); // is no job
    for (int engine = 0; engine < 2; engine++) {
        json_t *jobs = ask(&f, "jobs", "{}", &err);
        assert_int_equal(json_array_size(jobs), 2);
        for (size_t i = 0; i < 2; i++) {
            const json_t *row = json_array_get(jobs, i);
            assert_string_equal(json_string_value(json_object_get(row, "state")), words[i]);
            assert_int_equal(json_integer_value(json_object_get(row, "id")), 2 - i);
            assert_true(json_integer_value(json_object_get(row, "ended_ns")) > 1000000000000000000);
            assert_null(json_object_get(row, "history"));
        }
        json_decref(jobs);
        json_t *last = ask(&f, "job", "{\"job\": \"result\"}", &err),
               *first = ask(&f, "job", "{\"job\": \"1\"}", &err);
        assert_non_null(strstr(json_string_value(json_object_get(last, "why")), "training stops"));
        assert_string_equal(json_string_value(json_object_get(first, "job")), "result");
        same_losses(doc, first, STEPS);
        json_decref(last);
        json_decref(first);
        assert_null(ask(&f, "job", "{\"job\": \"3\"}", &err));
        assert_non_null(strstr(hth_err_detail(), "there is no job '3'"));
        hth_engine_close(f.engine);
        hth_engine_config config = {.device = "cpu:mem=256MiB,threads=2", .resume = true};
        assert_ok(hth_engine_open(&config, f.store, &f.engine));
    }
    json_decref(doc);
    json_t *history = json_array(), *row, *list = json_array();
    for (int i = 0; i < 25001; i++) {
        json_array_append_new(history, json_pack("[i, i]", i, 0));
    }
    doc = json_pack("{s:o}", "history", history);
    for (int i = 0; i < HTH_ENDED_JOBS + 5; i++) {
        snprintf(name, sizeof name, "job%d", i);
        row = json_pack("{s:s}", "job", name);
        assert_ok(hth_ended_add(f.store, row, i == HTH_ENDED_JOBS + 4 ? doc : NULL));
        json_decref(row);
    }
    assert_ok(hth_ended_list(f.store, list));
    assert_int_equal(json_array_size(list), HTH_ENDED_JOBS);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "id")), 107);
    assert_int_equal(hth_ended_find(f.store, "job4", false, &row), HTH_ENOENT);
    assert_ok(hth_ended_find(f.store, name, true, &row));
    assert_int_equal(json_integer_value(json_object_get(row, "every")), 3);
    history = json_object_get(row, "history");
    assert_int_equal(json_array_size(history), 8335); // 0, 3, .. 24999, and the last
    assert_int_equal(json_integer_value(json_array_get(json_array_get(history, 8334), 0)), 25000);
    json_decref(row);
    json_decref(list);
    json_decref(doc);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_repeats_the_losses),
        cmocka_unit_test(jobs_go_on_by_name),
        cmocka_unit_test(failed_jobs_keep_their_checkpoint),
        cmocka_unit_test(what_is_forgotten_is_gone),
        cmocka_unit_test(checkpoints_that_fail_are_tried_again),
        cmocka_unit_test(a_checkpoint_is_missed_where_it_is),
        cmocka_unit_test(a_result_that_fails_is_a_checkpoint),
        cmocka_unit_test(a_result_waits_for_room),
        cmocka_unit_test(nothing_to_resume),
        cmocka_unit_test(engines_go_on_with_jobs),
        cmocka_unit_test(ended_jobs_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
