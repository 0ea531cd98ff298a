// SPDX-License-Identifier: Apache-2.0
// The engine as a child process, killed in every state. This program is its own engine's process.
#include "base/settings.h"
#include "base/spin.h"
#include "client/npy.h"
#include "engine/process/child.h"
#include "tests/rig/children.h"
#include "tests/rig/engine_call.h"

#include <jansson.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define LIMIT_NS 300000000000u // of everything that is waited for

static hearth_tensor images, labels;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

// engine_pid is the only child of this process.
static pid_t engine_pid(void)
{
    return child_of(getpid());
}

// kill_engine kills the engine's process, the next one where there is none now, and returns its id.
static pid_t kill_engine(int number)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    pid_t pid;
    while ((pid = engine_pid()) == 0) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    kill(pid, number);
    return pid;
}

// is_stopped: all of a process's threads are; what ran when the signal was sent may run on a while.
static bool is_stopped(pid_t pid)
{
    char path[400], text[400] = "";
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    bool stopped = true;
    for (struct dirent *e; d != NULL && stopped && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (f != NULL) {
            text[fread(text, 1, sizeof text - 1, f)] = 0;
            fclose(f);
            const char *state = strrchr(text, ')');
            stopped = state == NULL || state[2] == 'T' || state[2] == 'Z' || state[2] == 'X';
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return stopped;
}

// stop_engine returns when the engine's process takes nothing any more.
static pid_t stop_engine(void)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    pid_t pid = kill_engine(SIGSTOP);
    while (!is_stopped(pid)) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    return pid;
}

static int count_mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[1000];
    int n = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        n += strstr(line, "memfd:hearth") != NULL;
    }
    fclose(f);
    return n;
}

static void child_open(fixture *f, bool resume)
{
    hth_engine_config config = {
        .device = "cpu:mem=256MiB,threads=2", .child_store = f->dir, .resume = resume};
    assert_ok(hth_engine_open(&config, NULL, &f->engine));
}

static void open_all(fixture *f)
{
    strcpy(f->dir, "/tmp/hearth-child-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_ok(hth_store_open(f->dir, true, false, &f->store));
    assert_ok(hth_job_paths_begin(f->store));
    put(f->store, "digits", "tests/data/digits/digits.onnx");
    put(f->store, "new", "tests/data/digits/untrained.onnx");
    child_open(f, true);
}

static void wait_ready(hth_engine *engine)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    while (!hth_engine_ready(engine)) {
        assert_true(hth_real_ns() < until);
        nap();
    }
}

// A request that is submitted and not waited for.
static void call_begin(hth_engine *engine, call *c, const char *query, const char *arguments)
{
    c->r = (hth_request){.command = hth_command_find(query), .arguments = arguments};
    call_start(engine, c);
}

static hth_request_tensor input_of(int64_t n, const void *data)
{
    hth_request_tensor in = {.name = "image",
                             .t = {.dtype = HTH_DT_F32,
                                   .shape = {.rank = 4, .dim = {n, 1, 8, 8}},
                                   .data = (void *)data,
                                   .bytes = (size_t)n * 256}};
    return in;
}

// classify asks about all images and counts those that are right.
static int classify(hth_engine *engine, const void *data)
{
    int64_t n = images.shape[0];
    hth_request_tensor in = input_of(n, data);
    call c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    assert_ok(call_run(engine, &c));
    assert_string_equal(c.name[0], "logits");
    assert_int_equal(c.out[0].bytes, (size_t)n * 40);
    assert_int_equal(c.r.version, 1);
    const float *y = c.out[0].data;
    const int64_t *right = labels.data;
    int good = 0;
    for (int64_t i = 0; i < n; i++) {
        int best = 0;
        for (int k = 1; k < 10; k++) {
            best = y[i * 10 + k] > y[i * 10 + best] ? k : best;
        }
        good += best == right[i];
    }
    free(c.out[0].data);
    return good;
}

// A running request that ends only when it is canceled.
#define SLOW "{\"model\":\"digits\",\"batch\":4,\"seconds\":600}"

static atomic_int progress;

static void note_progress(hth_request *request, const char *what, uint64_t done, uint64_t total)
{
    atomic_fetch_add(&progress, 1);
}

// slow_begin returns when the request, which is a part of `whole`, or of none, runs.
static void slow_begin(hth_engine *engine, call *c, const hth_request *whole)
{
    atomic_store(&progress, 0);
    c->r = (hth_request){
        .command = HTH_COMMAND_BENCH, .arguments = SLOW, .progress = note_progress, .whole = whole};
    call_start(engine, c);
    uint64_t until = hth_real_after(LIMIT_NS);
    while (atomic_load(&progress) == 0) {
        assert_true(hth_real_ns() < until);
        nap();
    }
}

// ---- what works as in a thread

static void test_answers(void **state)
{
    fixture f;
    open_all(&f);
    assert_true(hth_engine_ready(f.engine));
    assert_int_equal(classify(f.engine, images.data), 355);
    call c = {.r = {.command = HTH_COMMAND_DEVICES}};
    assert_ok(call_run(f.engine, &c));
    json_t *doc = json_loads(c.r.json, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(
                         json_array_get(json_object_get(doc, "devices"), 0), "budget_bytes")),
                     256 << 20);
    json_decref(doc);
    hth_free(c.r.json);
    hth_request_tensor in = input_of(1, images.data);
    in.t.shape.dim[3] = 4;
    in.t.bytes = 128;
    call bad = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    assert_err(call_run(f.engine, &bad), HTH_EINVAL, "image");
    call none = {.r = {.model = "nothing", .inputs = &in, .n_inputs = 1}};
    assert_err(call_run(f.engine, &none), HTH_ENOENT, "nothing");
    fixture_close(&f);
}

static hth_err refuse_place(hth_request *request, hth_request_tensor *out, int n)
{
    return hth_fail(HTH_EDENIED, "no place for %d outputs", n);
}

// Many at a time, large ones among them, one whose submitter refuses the outputs.
static void test_many(void **state)
{
    enum { N = 40 };
    static call c[N];
    fixture f;
    int64_t many = 5000;
    float *large = calloc((size_t)many * 64, sizeof *large);
    hth_request_tensor in[N];
    open_all(&f);
    memset(c, 0, sizeof c);
    for (int i = 0; i < N; i++) {
        in[i] = i % 8 == 0 ? input_of(many, large) : input_of(1 + i % 3, images.data);
        c[i].r = (hth_request){.model = "digits",
                               .inputs = &in[i],
                               .n_inputs = 1,
                               .place = i == 9 ? refuse_place : NULL};
        call_start(f.engine, &c[i]);
    }
    for (int i = 0; i < N; i++) {
        hth_err err = call_wait(&c[i]);
        if (i == 9) {
            assert_err(err, HTH_EDENIED, "no place for 1 outputs");
            continue;
        }
        assert_ok(err);
        assert_int_equal(c[i].out[0].bytes, in[i].t.bytes / 256 * 40);
        free(c[i].out[0].data);
    }
    free(large);
    fixture_close(&f);
}

// ---- a thread that polls for its own answers

typedef struct polled_call {
    atomic_bool ended;
    pthread_t by;
} polled_call;

static void polled_done(hth_request *request)
{
    polled_call *l = request->ctx;
    l->by = pthread_self();
    atomic_store(&l->ended, true);
}

// poll_until_answered returns whether the answer came on this thread.
static bool poll_until_answered(hth_engine *engine)
{
    polled_call l = {.ended = false};
    hth_request r = {
        .command = HTH_COMMAND_DEVICES, .arguments = "{}", .done = polled_done, .ctx = &l};
    uint64_t until = hth_real_after(LIMIT_NS);
    assert_ok(hth_engine_submit(engine, &r));
    while (!atomic_load(&l.ended)) {
        (void)hth_engine_poll(engine, true);
        assert_true(hth_real_ns() < until);
    }
    assert_ok(r.err);
    hth_free(r.json);
    return pthread_equal(l.by, pthread_self());
}

static void *classify_elsewhere(void *arg)
{
    fixture *f = arg;
    assert_int_equal(classify(f->engine, images.data), 355);
    return NULL;
}

static void test_poll(void **state)
{
    fixture f;
    pthread_t other;
    int here = 0;
    open_all(&f);
    (void)hth_engine_poll(f.engine, true);
    for (int i = 0; i < 200; i++) {
        here += poll_until_answered(f.engine);
    }
    assert_true(here > 0);
    for (int i = 0; i < 2; i++) { // who said that it polls, and does not, keeps nobody from answers
        (void)hth_engine_poll(f.engine, true);
        assert_int_equal(pthread_create(&other, NULL, classify_elsewhere, &f), 0);
        pthread_join(other, NULL);
        (void)hth_engine_poll(f.engine, true);
        (void)kill_engine(SIGKILL); // and goes on with the next child
        (void)poll_until_answered(f.engine);
    }
    (void)hth_engine_poll(f.engine, false);
    assert_int_equal(classify(f.engine, images.data), 355);
    fixture_close(&f);
}

// While large tensors come nobody spins in either process; small ones change nothing.
static void test_spin_suspended(void **state)
{
    (void)state;
    fixture f;
    open_all(&f);
    hth_request_tensor one = input_of(1, images.data);
    call c = {.r = {.model = "digits", .inputs = &one, .n_inputs = 1}};
    assert_ok(call_run(f.engine, &c));
    free(c.out[0].data);
    usleep(60000); // the supervisor has read what the child says
    uint64_t before = hth_spin_suspended_until(), until = hth_real_after(LIMIT_NS);
    assert_int_equal(before, 0);
    assert_true(images.shape[0] * 256 >= 64 << 10);
    classify(f.engine, images.data);
    while (hth_spin_suspended_until() == before) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    assert_true(hth_spin_suspended_until() < hth_real_after(1000000000u));
    fixture_close(&f);
}

static void test_cancel_and_progress(void **state)
{
    fixture f;
    call c = {.finished = false};
    open_all(&f);
    hth_request whole = {.command = HTH_COMMAND_BENCH};
    for (int part = 0; part < 2; part++) {
        slow_begin(f.engine, &c, part ? &whole : NULL);
        *(part ? &whole.canceled : &c.r.canceled) = 1;
        assert_int_equal(call_wait(&c), HTH_ECANCELED);
    }
    assert_int_equal(classify(f.engine, images.data), 355);
    fixture_close(&f);
}

static void test_cannot_open(void **state)
{
    hth_engine *e;
    char dir[] = "/tmp/hearth-child-XXXXXX";
    int fds = test_open_fds();
    assert_non_null(mkdtemp(dir));
    assert_err(hth_engine_open(&(hth_engine_config){.device = "cpu:threads=0", .child_store = dir},
                               NULL, &e),
               HTH_EINVAL, "threads");
    assert_null(e);
    assert_int_equal(test_open_fds(), fds);
    assert_int_equal(engine_pid(), 0);
    assert_int_equal(test_remove(dir), 0);
}

// ---- crashes

static void test_killed_idle(void **state)
{
    fixture f;
    open_all(&f);
    assert_int_equal(classify(f.engine, images.data), 355);
    pid_t pid = kill_engine(SIGKILL);
    assert_int_equal(classify(f.engine, images.data), 355); // waits for the next one
    wait_ready(f.engine);
    assert_int_not_equal(engine_pid(), pid);
    fixture_close(&f);
}

// What runs fails with a sentence, what waits after it is answered by the next process.
static void test_killed_at_work(void **state)
{
    enum { N = 20 };
    static call slow, wait[N];
    fixture f;
    hth_request_tensor in = input_of(2, images.data);
    open_all(&f);
    memset(&slow, 0, sizeof slow);
    memset(wait, 0, sizeof wait);
    slow_begin(f.engine, &slow, NULL);
    for (int i = 0; i < N; i++) {
        wait[i].r = (hth_request){.model = "digits", .inputs = &in, .n_inputs = 1};
        call_start(f.engine, &wait[i]);
    }
    kill_engine(SIGABRT);
    assert_err(call_wait(&slow), HTH_EDEVLOST,
               "the engine process died while this request ran (signal 6); it is being "
               "restarted");
    for (int i = 0; i < N; i++) {
        assert_ok(call_wait(&wait[i]));
        assert_memory_equal(wait[i].out[0].data, wait[0].out[0].data, 80);
        if (i > 0) {
            free(wait[i].out[0].data);
        }
    }
    free(wait[0].out[0].data);
    fixture_close(&f);
}

// What waits for the next process expires on time, and one that would wait for ever does not.
static void test_timeouts_while_it_is_away(void **state)
{
    fixture f;
    hth_request_tensor in = input_of(1, images.data);
    static call c[2];
    memset(c, 0, sizeof c);
    open_all(&f);
    pid_t last = 0, pid;
    uint64_t until = hth_real_after(LIMIT_NS);
    for (int crashes = 0; crashes < 4; crashes++) { // the next start is 400 ms away then
        while ((pid = engine_pid()) == 0 || pid == last) {
            assert_true(hth_real_ns() < until);
            nap();
        }
        last = pid;
        kill(pid, crashes < 3 ? SIGKILL : SIGSTOP);
    }
    while (!is_stopped(last)) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    for (int i = 0; i < 2; i++) {
        c[i].r = (hth_request){.model = "digits",
                               .inputs = &in,
                               .n_inputs = 1,
                               .timeout_us = i == 0 ? 50000 : UINT64_MAX};
        call_start(f.engine, &c[i]);
    }
    kill(last, SIGKILL);
    assert_err(call_wait(&c[0]), HTH_ETIMEDOUT, "Request timeout expired");
    assert_ok(call_wait(&c[1]));
    free(c[1].out[0].data);
    fixture_close(&f);
}

// A timeout that is the model's counts from the submission, too, not from the next process's start.
static void test_default_timeout_goes_on(void **state)
{
    fixture f;
    hth_request_tensor in = input_of(1, images.data);
    static call c;
    call set = {.r = {.command = HTH_COMMAND_BATCHING,
                      .arguments = "{\"model\":\"digits\",\"timeout_us\":1500000}"}};
    memset(&c, 0, sizeof c);
    open_all(&f);
    assert_ok(call_run(f.engine, &set));
    hth_free(set.r.json);
    (void)stop_engine(); // it waits in there
    c.r = (hth_request){.model = "digits", .inputs = &in, .n_inputs = 1};
    call_start(f.engine, &c);
    uint64_t until = hth_real_after(1600000000u);
    while (hth_real_ns() < until) {
        nap();
    }
    kill_engine(SIGKILL);
    assert_err(call_wait(&c), HTH_ETIMEDOUT, "Request timeout expired");
    fixture_close(&f);
}

// What a request has waited elsewhere before counts in the process, too.
static void test_waited_before(void **state)
{
    fixture f;
    hth_request_tensor in = input_of(1, images.data);
    open_all(&f);
    call c = {.r = {.model = "digits",
                    .inputs = &in,
                    .n_inputs = 1,
                    .timeout_us = 3600000000u,
                    .waited_ns = 3601000000000u}};
    assert_err(call_run(f.engine, &c), HTH_ETIMEDOUT, "Request timeout expired");
    c.r.timeout_us = 0;
    assert_ok(call_run(f.engine, &c));
    free(c.out[0].data);
    fixture_close(&f);
}

static bool is_loaded(hth_engine *engine)
{
    call c = {.r = {.command = HTH_COMMAND_LOADED}};
    assert_ok(call_run(engine, &c));
    bool found = strstr(c.r.json, "\"digits\"") != NULL;
    hth_free(c.r.json);
    return found;
}

// Models that were loaded are loaded again, unasked; one that was unloaded is not.
static void test_models_come_back(void **state)
{
    fixture f;
    open_all(&f);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(classify(f.engine, images.data), 355);
        assert_true(is_loaded(f.engine));
        if (round == 1) {
            call c = {.r = {.command = HTH_COMMAND_UNLOAD, .arguments = "{\"model\":\"digits\"}"}};
            assert_ok(call_run(f.engine, &c));
            hth_free(c.r.json);
        }
        pid_t pid = kill_engine(SIGKILL);
        uint64_t until = hth_real_after(LIMIT_NS);
        while (engine_pid() == pid || !hth_engine_ready(f.engine) ||
               (round == 0 && !is_loaded(f.engine))) {
            assert_true(hth_real_ns() < until);
            nap();
        }
    }
    assert_false(is_loaded(f.engine));
    fixture_close(&f);
}

// A process that is stopped says nothing, and is replaced.
static void test_hangs(void **state)
{
    fixture f;
    assert_ok(hth_setting_set("engine.heartbeat_ms", "100"));
    assert_ok(hth_setting_set("engine.missed_heartbeats", "50"));
    open_all(&f);
    pid_t pid = stop_engine();
    uint64_t until = hth_real_after(LIMIT_NS);
    while (engine_pid() == pid) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    assert_ok(hth_setting_set("engine.missed_heartbeats", "1000")); // the next one may get no time
    assert_int_equal(classify(f.engine, images.data), 355);
    fixture_close(&f);
    hth_setting_reset();
}

static void test_killed_while_it_trains(void **state)
{
    fixture f;
    char cwd[300], args[900];
    call c = {.finished = false};
    open_all(&f);
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(args, sizeof args,
             "{\"model\":\"new\",\"data\":\"%s/tests/data/digits/train.safetensors\",\"loss\":"
             "\"softmax-xent\",\"lr\":0.01,\"batch\":64,\"epochs\":20,\"save-as\":\"trained\","
             "\"checkpoint-every\":5}",
             cwd);
    paths_named(f.store, args);
    call_begin(f.engine, &c, "train", args);
    hth_manifest m;
    uint64_t until = hth_real_after(LIMIT_NS);
    while (hth_store_get(f.store, "trained.checkpoint", 0, &m) != HTH_OK) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    hth_manifest_fini(&m);
    kill_engine(SIGKILL);
    assert_ok(call_wait(&c)); // goes on by itself, to its end
    hth_free(c.r.json);
    assert_ok(hth_store_get(f.store, "trained", 0, &m));
    hth_manifest_fini(&m);
    fixture_close(&f);
}

// A process that dies again and again is refused to, and tried on.
static void test_too_many_crashes(void **state)
{
    fixture f;
    open_all(&f);
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "300"));
    uint64_t until = hth_real_after(LIMIT_NS);
    hth_request_tensor in = input_of(1, images.data);
    call c = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1, .place = call_place}};
    hth_err err = HTH_OK;
    pid_t last = 0;
    while (err != HTH_EDEVLOST) {
        assert_true(hth_real_ns() < until);
        pid_t pid = engine_pid();
        if (pid != 0 && pid != last) {
            kill(pid, SIGKILL);
            last = pid;
        }
        if (!hth_engine_ready(f.engine)) { // otherwise it would be accepted
            call_init(&c);
            err = hth_engine_submit(f.engine, &c.r);
            if (err == HTH_OK) {
                c.r.canceled = 1;
                hth_err ended = call_wait(&c);
                assert_true(ended == HTH_ECANCELED || ended == HTH_EDEVLOST || ended == HTH_OK);
                c.r.canceled = 0;
            }
        }
        nap();
    }
    assert_non_null(strstr(hth_err_detail(), "times in a row"));
    wait_ready(f.engine); // tried on
    assert_int_equal(classify(f.engine, images.data), 355);
    fixture_close(&f);
    hth_setting_reset();
}

static void test_nothing_is_left(void **state)
{
    fixture f;
    open_all(&f);
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "0"));
    assert_int_equal(classify(f.engine, images.data), 355);
    int fds = 0, mappings = 0;
    for (int i = 0; i < 100; i++) {
        wait_ready(f.engine);
        if (i == 1) {
            fds = test_open_fds();
            mappings = count_mappings();
        }
        pid_t pid = kill_engine(SIGKILL);
        uint64_t until = hth_real_after(LIMIT_NS);
        while (engine_pid() == pid || engine_pid() == 0) { // it is ready until that is noticed
            assert_true(hth_real_ns() < until);
            nap();
        }
    }
    wait_ready(f.engine);
    assert_int_equal(classify(f.engine, images.data), 355);
    assert_int_equal(test_open_fds(), fds);
    assert_int_equal(count_mappings(), mappings);
    int64_t n;
    hth_store_entry *list;
    int count;
    assert_ok(hth_store_list(f.store, &list, &count)); // the index is whole
    n = count;
    assert_int_equal(n, 2);
    hth_free(list);
    hth_engine_close(f.engine);
    f.engine = NULL;
    errno = 0;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no zombie
    assert_int_equal(errno, ECHILD);
    assert_int_equal(count_mappings(), 0);
    fixture_close(&f);
    hth_setting_reset();
}

// ---- outputs that stay where the child put them

static hth_err keeping_place(hth_request *request, hth_request_tensor *out, int n)
{
    call *c = request->ctx;
    assert_int_equal(n, 1);
    assert_null(out[0].t.data);
    assert_non_null(out[0].offered);
    out[0].t.data = out[0].offered;
    c->out[0] = out[0].t;
    return HTH_OK;
}

static void keep(hth_engine *engine, call *c, const hth_request_tensor *in)
{
    *c = (call){.r = {.model = "digits", .inputs = in, .n_inputs = 1, .keeps = true}};
    call_init(c);
    c->r.place = keeping_place;
    assert_ok(hth_engine_submit(engine, &c->r));
    assert_ok(call_wait(c));
    assert_non_null(c->r.retained);
}

static void assert_near(const float *a, const float *b, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *a; i++) {
        assert_float_equal(a[i], b[i], 1e-4);
    }
}

// restart kills the engine's process and waits for the next one.
static void restart(hth_engine *engine)
{
    pid_t pid = kill_engine(SIGKILL);
    uint64_t until = hth_real_after(LIMIT_NS);
    while (engine_pid() == pid || engine_pid() == 0 || !hth_engine_ready(engine)) {
        assert_true(hth_real_ns() < until);
        nap();
    }
}

// Neither other requests nor the child's death change what is kept; when it is given up, its memory
// is gone with the child that it was of, and its entry serves again.
static void test_kept(void **state)
{
    fixture f;
    call c[3];
    open_all(&f);
    wait_ready(f.engine);
    hth_request_tensor in = input_of(images.shape[0], images.data);
    call copied = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    assert_ok(call_run(f.engine, &copied));
    assert_null(copied.r.retained);
    size_t bytes = copied.out[0].bytes;
    int mappings = count_mappings(), fds = test_open_fds();
    float *zeros = calloc((size_t)images.shape[0], 256);
    void *was[3]; // algorithms measured meanwhile may change an answer's last bits
    for (int i = 0; i < 3; i++) {
        keep(f.engine, &c[i], &in);
        assert_int_equal(c[i].out[0].bytes, bytes);
        assert_near(c[i].out[0].data, copied.out[0].data, bytes);
        was[i] = memcpy(malloc(bytes), c[i].out[0].data, bytes);
        for (int k = 0; k < 20; k++) {
            (void)classify(f.engine, zeros);
        }
        if (i < 2) {
            restart(f.engine);
        }
    }
    assert_int_equal(count_mappings(), mappings + 2); // of those that are dead
    for (int i = 2; i >= 0; i--) {
        for (int k = 0; k <= i; k++) {
            assert_memory_equal(c[k].out[0].data, was[k], bytes);
        }
        hth_engine_release(c[i].r.retained);
        free(was[i]);
    }
    assert_int_equal(count_mappings(), mappings);
    assert_int_equal(test_open_fds(), fds);
    hth_request_tensor one = input_of(1, images.data);
    for (int i = 0; i < 3000; i++) { // more than there are entries
        call again;
        keep(f.engine, &again, &one);
        assert_near(again.out[0].data, copied.out[0].data, again.out[0].bytes);
        hth_engine_release(again.r.retained);
    }
    free(zeros);
    free(copied.out[0].data);
    fixture_close(&f);
}

// greedy_place keeps what is offered.
static hth_err greedy_place(hth_request *request, hth_request_tensor *out, int n)
{
    call *c = request->ctx;
    out[0].t.data = out[0].offered != NULL ? out[0].offered : malloc(out[0].t.bytes);
    c->out[0] = out[0].t;
    return n == 1 ? HTH_OK : HTH_EINVAL;
}

// Who does not read what it was given leaves three quarters of the entries to all others, whose
// outputs are copied meanwhile.
static void test_kept_share(void **state)
{
    enum { QUEUE = 8, ENTRIES = QUEUE + 1024, SHARE = ENTRIES / 4 };
    static call c[SHARE];
    fixture f;
    open_all(&f);
    hth_engine_close(f.engine);
    hth_engine_config config = {
        .device = "cpu:mem=256MiB,threads=2", .child_store = f.dir, .queue = QUEUE};
    assert_ok(hth_engine_open(&config, NULL, &f.engine));
    wait_ready(f.engine);
    hth_request_tensor in = input_of(1, images.data);
    for (int round = 0; round < 2; round++) { // the second time: what was given up can be had again
        for (int i = 0; i < SHARE; i++) {
            keep(f.engine, &c[i], &in);
        }
        for (int i = 0; i < 20; i++) {
            call other = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1, .keeps = true}};
            other.r.place = greedy_place;
            assert_ok(call_run(f.engine, &other));
            assert_null(other.r.retained);
            free(other.out[0].data);
        }
        for (int i = 0; i < SHARE; i++) {
            hth_engine_release(c[i].r.retained);
        }
    }
    fixture_close(&f);
}

// ---- clients' memory

// An input in memory that was shared is not copied: what changes there is seen.
static void test_shared_memory(void **state)
{
    fixture f;
    open_all(&f);
    size_t bytes = (size_t)images.shape[0] * 256, all = (bytes + 8191) / 4096 * 4096;
    int fd = memfd_create("hearth-client", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)all), 0);
    char *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memcpy(base + 4096, images.data, bytes);
    hth_engine_share(f.engine, fd, 0, base, all);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(classify(f.engine, base + 4096), 355);
        if (i == 0) {
            kill_engine(SIGKILL); // the next one gets it, too
        }
    }
    // the owner shrinks it: the request gets zeros where there is nothing, and nobody dies
    pid_t pid = engine_pid();
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_true(classify(f.engine, base + 4096) < 355);
    assert_int_equal(engine_pid(), pid);
    hth_engine_unshare(f.engine, base);
    munmap(base, all);
    close(fd);
    assert_int_equal(classify(f.engine, images.data), 355);
    fixture_close(&f);
}

static int setup(void **state)
{
    return hth_npy_read("tests/data/digits/images.npy", &images) != HTH_OK ||
           hth_npy_read("tests/data/digits/labels.npy", &labels) != HTH_OK;
}

static int teardown(void **state)
{
    hth_free(images.data);
    hth_free(labels.data);
    return 0;
}

int main(int argc, char **argv)
{
    if (hth_child_requested(argc, argv)) {
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spin_suspended), // before any other sends large tensors
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_poll),
        cmocka_unit_test(test_cancel_and_progress),
        cmocka_unit_test(test_cannot_open),
        cmocka_unit_test(test_killed_idle),
        cmocka_unit_test(test_killed_at_work),
        cmocka_unit_test(test_timeouts_while_it_is_away),
        cmocka_unit_test(test_default_timeout_goes_on),
        cmocka_unit_test(test_waited_before),
        cmocka_unit_test(test_models_come_back),
        cmocka_unit_test(test_hangs),
        cmocka_unit_test(test_killed_while_it_trains),
        cmocka_unit_test(test_too_many_crashes),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_kept_share),
        cmocka_unit_test(test_shared_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
