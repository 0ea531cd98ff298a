// SPDX-License-Identifier: Apache-2.0
// Every call of hearth.h with a real engine in this process: with each allocation of it failing, a
// day of calls at one a second, and ten thousand in flight.
#include "base/sanitized.h"
#include "client/infer/dlpack.h"
#include "tests/rig/server_rig.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#define DIGITS    "tests/data/digits/digits.onnx"
#define UNTRAINED "tests/data/digits/untrained.onnx"
#define DATA      "tests/data/digits/train.safetensors"
#define CLASSES   10
#define MANY      10000
#define LIMIT_MS  20000 // that nobody waits for an answer that was lost
#define DAY       86400 // calls, one a second

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define TRY(x)                                                                                     \
    do {                                                                                           \
        hearth_status try_ = (x);                                                                  \
        if (try_ != HEARTH_OK) {                                                                   \
            return try_;                                                                           \
        }                                                                                          \
    } while (0)

typedef struct fixture {
    char dir[64], store[96], away[96], file[96]; // away: another store
    float image[64], want[CLASSES];
    void *onnx; // digits.onnx
    size_t onnx_bytes;
    hearth *h, *other; // other: of a store of its own, if there is one
} fixture;

static void open_engine(fixture *f)
{
    hearth_embed_options o = {
        .size = sizeof o, .store = f->store, .device = "cpu:threads=1", .timeout_ms = LIMIT_MS};
    assert_int_equal(hearth_embed(&o, &f->h), HEARTH_OK);
}

static void close_engine(fixture *f)
{
    hearth_close(f->h);
    hearth_close(f->other);
    f->h = f->other = NULL;
}

static hearth_tensor images(fixture *f)
{
    return (hearth_tensor){.dtype = HEARTH_F32,
                           .rank = 4,
                           .shape = {1, 1, 8, 8},
                           .data = f->image,
                           .bytes = sizeof f->image};
}

// To rounding: a model that is loaded again may have other algorithms.
static bool right(const fixture *f, const hearth_tensor *out)
{
    bool same = out->bytes == sizeof f->want;
    for (int i = 0; same && i < CLASSES; i++) {
        same = fabsf(((const float *)out->data)[i] - f->want[i]) < 1e-3F;
    }
    return same;
}

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    strcpy(f->dir, "/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->store, sizeof f->store, "%s/store", f->dir);
    snprintf(f->away, sizeof f->away, "%s/away", f->dir);
    snprintf(f->file, sizeof f->file, "%s/out.onnx", f->dir);
    for (int i = 0; i < 64; i++) {
        f->image[i] = (float)(i % 7) / 7;
    }
    FILE *onnx = fopen(DIGITS, "rb");
    assert_non_null(onnx);
    f->onnx = hth_alloc(1 << 20);
    f->onnx_bytes = fread(f->onnx, 1, 1 << 20, onnx);
    fclose(onnx);
    open_engine(f);
    assert_int_equal(hearth_import(f->h, "digits", DIGITS, -1, NULL, NULL, NULL), HEARTH_OK);
    assert_int_equal(hearth_import(f->h, "new", UNTRAINED, -1, NULL, NULL, NULL), HEARTH_OK);
    hearth_tensor in = images(f), out = {.data = f->want, .bytes = sizeof f->want};
    assert_int_equal(hearth_infer_into(f->h, "digits", &in, 1, &out, 1), HEARTH_OK);
    close_engine(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    close_engine(f);
    assert_int_equal(test_remove(f->dir), 0);
    hth_free(f->onnx);
    hth_free(f);
    return 0;
}

// ---- each call, which frees what it got

static hearth_status infer(fixture *f)
{
    hearth_tensor in = images(f), *out;
    int n;
    TRY(hearth_infer(f->h, "digits", &in, 1, &out, &n));
    assert_true(n == 1 && right(f, out));
    assert_int_equal(hearth_outputs_version(out), 1);
    assert_string_equal(hearth_outputs_model(out), "digits");
    hearth_tensors_free(out, n);
    return HEARTH_OK;
}

static hearth_status infer_with(fixture *f)
{
    hearth_tensor in = images(f), *out;
    hearth_infer_options o = {.priority = 1};
    int n;
    TRY(hearth_infer_with(f->h, "digits", &in, 1, &o, &out, &n));
    assert_true(n == 1 && right(f, out));
    hearth_tensors_free(out, n);
    return HEARTH_OK;
}

static hearth_status infer_into(fixture *f)
{
    float y[CLASSES] = {0};
    hearth_tensor in = images(f), out = {.data = y, .bytes = sizeof y};
    TRY(hearth_infer_into(f->h, "digits", &in, 1, &out, 1));
    assert_true(right(f, &out));
    return HEARTH_OK;
}

// An output is lent, which frees the others, and looked at as a tensor of somebody.
static hearth_status lend(fixture *f)
{
    hearth_tensor in = images(f), *out, back;
    struct DLManagedTensorVersioned *lent = NULL;
    struct DLManagedTensor *old = NULL;
    int n;
    TRY(hearth_infer(f->h, "digits", &in, 1, &out, &n));
    hearth_status s = hearth_outputs_dlpack(out, 0, &lent);
    s = s == HEARTH_OK ? hearth_outputs_dlpack_unversioned(out, 0, &old) : s;
    hearth_tensors_free(out, n);
    if (lent != NULL) {
        assert_int_equal(hearth_tensor_from_dlpack(lent, "y", &back), HEARTH_OK);
        assert_true(right(f, &back));
        lent->deleter(lent);
    }
    if (old != NULL) {
        assert_int_equal(hearth_tensor_from_dlpack_unversioned(old, "y", &back), HEARTH_OK);
        assert_true(right(f, &back));
        old->deleter(old);
    }
    return s;
}

typedef struct answers {
    fixture *f;
    pthread_mutex_t lock;
    pthread_cond_t more;
    int n, ok, canceled;
    hearth_status other; // the last one that is neither
} answers;

static void answers_init(answers *a, fixture *f)
{
    *a = (answers){.f = f};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->more, NULL);
}

static void take(void *ctx, hearth_status status, hearth_tensor *outputs, int n_outputs)
{
    answers *a = ctx;
    pthread_mutex_lock(&a->lock);
    if (status == HEARTH_OK) {
        a->ok += n_outputs == 1 && right(a->f, outputs);
    } else if (status == HEARTH_ECANCELED) {
        a->canceled++;
    } else {
        a->other = status;
    }
    a->n++;
    hearth_tensors_free(outputs, n_outputs);
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->lock);
}

static void answers_wait(answers *a, int n)
{
    pthread_mutex_lock(&a->lock);
    while (a->n < n) {
        pthread_cond_wait(&a->more, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    assert_int_equal(a->n, n);
}

// submit_and_cancel cancels its call at once, or after `first` answers.
static hearth_status submit_and_cancel(fixture *f, int first)
{
    answers a;
    hearth_tensor in = images(f);
    hearth_call *call;
    answers_init(&a, f);
    TRY(hearth_submit(f->h, "digits", &in, 1, NULL, take, &a, &call));
    answers_wait(&a, first);
    hearth_call_cancel(call);
    answers_wait(&a, 1);
    assert_true(a.ok + a.canceled + (a.other != HEARTH_OK) == 1);
    assert_true(first == 0 || a.canceled == 0);
    return a.other;
}

static hearth_status submit(fixture *f)
{
    return submit_and_cancel(f, 1);
}

static hearth_status cancel(fixture *f)
{
    return submit_and_cancel(f, 0);
}

// On a connection of its own: the callbacks of this one come from its thread already.
static hearth_status events(fixture *f)
{
    hearth_embed_options o = {.size = sizeof o, .store = f->away, .device = "cpu:threads=1"};
    answers a;
    hearth_tensor in = images(f);
    hearth *h;
    answers_init(&a, f);
    TRY(hearth_embed(&o, &h));
    hearth_status s = hearth_import_memory(h, "digits", f->onnx, f->onnx_bytes, -1, NULL);
    if (s == HEARTH_OK && hearth_event_fd(h) < 0) {
        s = HEARTH_ENOMEM;
    }
    s = s != HEARTH_OK ? s : hearth_submit(h, "digits", &in, 1, NULL, take, &a, NULL);
    while (s == HEARTH_OK && a.n == 0) {
        assert_true(hearth_event_run(h) >= 0);
    }
    hearth_close(h);
    return s != HEARTH_OK ? s : a.other;
}

static hearth_status buffer(fixture *f)
{
    void *p;
    TRY(hearth_buffer_alloc(f->h, sizeof f->image, &p));
    memcpy(p, f->image, sizeof f->image);
    float y[CLASSES] = {0};
    hearth_tensor in = images(f), out = {.data = y, .bytes = sizeof y};
    in.data = p;
    hearth_status s = hearth_infer_into(f->h, "digits", &in, 1, &out, 1);
    hearth_buffer_free(f->h, p);
    assert_true(s != HEARTH_OK || right(f, &out));
    return s;
}

static hearth_status import(fixture *f)
{
    hearth_import_result r;
    TRY(hearth_import(f->h, "twin", DIGITS, -1, NULL, NULL, &r));
    TRY(hearth_remove(f->h, "twin"));
    return HEARTH_OK;
}

static hearth_status import_with(fixture *f)
{
    hearth_import_report r;
    hearth_import_options o = {.no_wait = 1};
    return hearth_import_with(f->h, "second", UNTRAINED, -1, &o, NULL, NULL, &r);
}

static hearth_status import_memory(fixture *f)
{
    return hearth_import_memory(f->h, "memory", f->onnx, f->onnx_bytes, -1, NULL);
}

static hearth_status gc(fixture *f)
{
    uint64_t files, bytes;
    return hearth_gc(f->h, &files, &bytes);
}

static hearth_status query(fixture *f)
{
    static const char *const what[] = {"models", "stats",    "devices",
                                       "jobs",   "datasets", "model digits"};
    for (int i = 0; i < COUNT(what); i++) {
        char *json;
        TRY(hearth_query(f->h, what[i], NULL, NULL, NULL, &json));
        hearth_free(json);
    }
    return HEARTH_OK;
}

static hearth_status plan(fixture *f)
{
    char *json;
    TRY(hearth_query(f->h, "plan", "{\"model\":\"digits\",\"batch\":8}", NULL, NULL, &json));
    hearth_free(json);
    return HEARTH_OK;
}

static hearth_status export(fixture *f)
{
    hearth_export_report r;
    TRY(hearth_export(f->h, "digits", f->file));
    TRY(hearth_export_with(f->h, "digits", f->file, NULL, NULL, &r));
    assert_true(r.bytes > 0);
    return HEARTH_OK;
}

static hearth_status push(fixture *f)
{
    hearth_embed_options o = {.size = sizeof o, .store = f->away, .device = "cpu:threads=1"};
    hearth *to;
    TRY(hearth_embed(&o, &to));
    hearth_status s = hearth_push(f->h, "digits", to, 0, NULL, NULL, NULL);
    hearth_close(to);
    return s;
}

static hearth_status data(fixture *f)
{
    hearth_data_result r;
    TRY(hearth_data_put(f->h, "set", DATA, NULL, &r));
    return hearth_data_remove(f->h, "set");
}

static hearth_status load(fixture *f)
{
    hearth_load_result r;
    TRY(hearth_load(f->h, "digits", NULL, &r));
    return hearth_unload(f->h, "digits", NULL);
}

static int watch(void *ctx, const hearth_job_info *info)
{
    (void)info;
    ++*(int *)ctx;
    return 0;
}

static hearth_status jobs(fixture *f)
{
    hearth_train_options o = {.size = sizeof o, .batch = 256, .save_as = "trained"};
    hearth_job job = {0}, found;
    hearth_job_info *list, *info;
    hearth_train_result *result;
    int seen = 0;
    hearth_status s = hearth_train_submit(f->h, "new", DATA, &o, &job);
    assert_true(s == HEARTH_OK || job.id == 0); // without a job there is none
    TRY(s);
    s = hearth_job_watch(f->h, job, watch, &seen, &info);
    if (s == HEARTH_OK) {
        hearth_free(info);
    }
    while (hearth_job_wait(f->h, job, 0, &info) != HEARTH_OK) { // with this one failing
    }
    hearth_free(info);
    TRY(s);
    TRY(hearth_job_find(f->h, "trained", &found));
    assert_int_equal(found.id, job.id);
    TRY(hearth_job_list(f->h, &list));
    hearth_free(list);
    TRY(hearth_job_status(f->h, job, &info));
    hearth_free(info);
    TRY(hearth_job_result(f->h, job, &result));
    assert_true(result->steps > 0 && result->n_losses == result->steps);
    hearth_free(result);
    return HEARTH_OK;
}

static hearth_status job_ends(fixture *f)
{
    hearth_train_options o = {
        .size = sizeof o, .batch = 64, .epochs = 100000, .save_as = "endless"};
    hearth_job job;
    hearth_job_info *info;
    TRY(hearth_train_submit(f->h, "new", DATA, &o, &job));
    hearth_status s = hearth_job_pause(f->h, job);
    s = s != HEARTH_OK ? s : hearth_job_resume(f->h, job, NULL);
    while (hearth_job_cancel(f->h, job) == HEARTH_ENOMEM) { // with this one failing
    }
    while (hearth_job_wait(f->h, job, 0, &info) != HEARTH_OK) {
    }
    hearth_free(info);
    return s;
}

static hearth_status exchange(fixture *f)
{
    hearth_exchange *x;
    hearth_exchange_part part;
    TRY(hearth_exchange_open(0, 1, &x));
    assert_true(hearth_exchange_fd(x) >= 0 && hearth_exchange_argument(x) != NULL);
    hearth_train_options o = {.size = sizeof o, .batch = 256, .save_as = "rank", .exchange = x};
    hearth_job job;
    hearth_job_info *info;
    hearth_status s = hearth_train_submit(f->h, "new", DATA, &o, &job);
    if (s == HEARTH_OK) {
        while ((s = hearth_exchange_next(x, 0, &part)) == HEARTH_OK) { // one rank: as it is
            s = hearth_exchange_done(x, &part);
        }
        hearth_exchange_fail(x, "the test is over"); // it has ended
        s = s == HEARTH_ENOENT ? HEARTH_OK : s;
    }
    hearth_exchange_close(x);
    if (job.id != 0) {
        while (hearth_job_wait(f->h, job, 0, &info) != HEARTH_OK) {
        }
        if (s == HEARTH_ECANCELED && strstr(info->why, "memory") != NULL) {
            s = HEARTH_ENOMEM; // the job's
        }
        hearth_free(info);
    }
    return s;
}

static hearth_status open_and_close(fixture *f)
{
    hearth_options o = {.store = f->away, .device = "cpu:threads=1"};
    hearth *h;
    TRY(hearth_open("inproc://", &o, &h));
    hearth_close(h);
    return HEARTH_OK;
}

static hearth_status local_url(fixture *f)
{
    char url[128];
    hearth_status s = hearth_local_url(f->dir, url, sizeof url);
    return s == HEARTH_ENOENT || s == HEARTH_EDENIED ? HEARTH_OK : s; // or somebody listens
}

typedef struct one_call {
    const char *name;
    hearth_status (*call)(fixture *f);
} one_call;

static const one_call CALLS[] = {
    {"infer", infer},
    {"infer_with", infer_with},
    {"infer_into", infer_into},
    {"outputs_dlpack", lend},
    {"submit", submit},
    {"call_cancel", cancel},
    {"event", events},
    {"buffer", buffer},
    {"import", import},
    {"import_with", import_with},
    {"import_memory", import_memory},
    {"gc", gc},
    {"query", query},
    {"plan", plan},
    {"export", export},
    {"push", push},
    {"data", data},
    {"load", load},
    {"jobs", jobs},
    {"job_cancel", job_ends},
    {"exchange", exchange},
    {"open", open_and_close},
    {"local_url", local_url},
};

// about_memory: a server without the memory for a request ends the connection; the next call has
// another.
static bool about_memory(const char *sentence)
{
    return strstr(sentence, "memory") != NULL ||
           strstr(sentence, "was lost before the answer came") != NULL;
}

// Each of the first twenty allocations of a call, then an eighth more: some have
// thousands. A call may do without the one that failed, as a cache or a log can; it never crashes,
// waits for ever, or leaves anything, and the next one is right.
static void test_without_memory(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < COUNT(CALLS); i++) {
        const one_call *c = &CALLS[i];
        int64_t live = 0;
        for (int round = 0; round < 2; round++) { // what is made once is made in the first
            live = hth_alloc_live();
            open_engine(f);
            assert_int_equal(c->call(f), HEARTH_OK);
            close_engine(f);
        }
        assert_int_equal(hth_alloc_live(), live);
        open_engine(f);
        bool reached = true;
        for (uint64_t nth = 1; reached; nth += 1 + (nth > 20 ? nth / 8 : 0)) {
            uint64_t before = hth_alloc_count();
            hth_fault_alloc(nth);
            hearth_status s = c->call(f);
            hth_fault_alloc(0);
            reached = hth_alloc_count() - before >= nth;
            if (s != HEARTH_OK && s != HEARTH_ENOMEM && !about_memory(hearth_error())) {
                fail_msg("%s, allocation %llu: %s: %s", c->name, (unsigned long long)nth,
                         hearth_strerror(s), hearth_error());
            }
        }
        if (c->call(f) != HEARTH_OK) {
            fail_msg("%s: afterwards: %s", c->name, hearth_error());
        }
        close_engine(f);
        if (hth_alloc_live() != live) {
            fail_msg("%s leaves %lld blocks", c->name, (long long)(hth_alloc_live() - live));
        }
    }
}

// ---- a day

static int entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

typedef struct held {
    int64_t blocks;
    int files, threads;
    long pages; // resident
} held;

static held held_now(void)
{
    long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &size, &resident), 2);
    fclose(f);
    return (held){hth_alloc_live(), entries("/proc/self/fd"), entries("/proc/self/task"), resident};
}

static void test_day(void **state)
{
    fixture *f = *state;
    held morning = {0};
    open_engine(f);
    for (int second = 0; second < DAY; second++) {
        if (second % 3600 == 3599) { // what changes the store and the device
            static hearth_status (*const hourly[])(fixture * f) = {
                import, import_memory, gc, plan, export, data, load, submit, cancel, buffer, query};
            for (int i = 0; i < COUNT(hourly); i++) {
                assert_int_equal(hourly[i](f), HEARTH_OK);
            }
            if (second == 6 * 3600 - 1) {
                morning = held_now();
            }
        }
        assert_int_equal(second % 2 ? infer(f) : infer_into(f), HEARTH_OK);
    }
    held evening = held_now();
    assert_true(evening.blocks < morning.blocks + 8); // one of each hour would be 18
    assert_int_equal(evening.files, morning.files);
    assert_int_equal(evening.threads, morning.threads);
    if (!HTH_SANITIZED) { // which keeps what was freed
        assert_true(evening.pages - morning.pages < 256);
    }
}

// ---- ten thousand in flight

static void test_in_flight(void **state)
{
    fixture *f = *state;
    const char *urls[1];
    server_rig rig;
    server_rig_make(&rig);
    urls[0] = rig.ipc;
    hth_server_config config = {
        .store = rig.store, .device = "cpu:threads=1", .listen = urls, .n_listen = 1};
    assert_ok(hth_server_open(&config, &rig.server));
    open_engine(f);
    assert_int_equal(hearth_open(rig.ipc, NULL, &f->other), HEARTH_OK);
    assert_int_equal(hearth_import(f->other, "digits", DIGITS, -1, NULL, NULL, NULL), HEARTH_OK);
    hearth *at[] = {f->h, f->other};
    for (int i = 0; i < COUNT(at); i++) {
        for (int cancels = 0; cancels < 2; cancels++) {
            static hearth_call *call[MANY];
            answers a;
            hearth_tensor in = images(f);
            answers_init(&a, f);
            for (int k = 0; k < MANY; k++) {
                assert_int_equal(hearth_submit(at[i], "digits", &in, 1, NULL, take, &a, &call[k]),
                                 HEARTH_OK);
            }
            for (int k = MANY; cancels && k > 0;) { // the last one first: few have run
                hearth_call_cancel(call[--k]);
            }
            answers_wait(&a, MANY);
            assert_int_equal(a.other, HEARTH_OK);
            assert_int_equal(a.ok + a.canceled, MANY);
            assert_true(cancels ? a.canceled > 0 : a.ok == MANY);
        }
    }
    close_engine(f);
    server_rig_end(&rig);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {T(test_without_memory), T(test_day), T(test_in_flight)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
