// SPDX-License-Identifier: Apache-2.0
// What hearthd believes of its engine's process, and what it tells it: descriptors of clients'
// memory and what is in it, the end, for how long nobody spins. This program is its own engine's
// process.
#include "base/settings.h"
#include "base/spin.h"
#include "engine/process/child.h"
#include "engine/process/child_link.h"
#include "tests/rig/children.h"
#include "tests/rig/engine_call.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define LIMIT_NS    300000000000u // of everything that is waited for
#define SPINS       "HEARTH_TEST_SPINS"
#define SHARE_BYTES ((size_t)64 << 10)
#define TRIES       100

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void open_all(fixture *f)
{
    strcpy(f->dir, "/tmp/hearth-link-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_ok(hth_store_open(f->dir, true, false, &f->store));
    put(f->store, "digits", "tests/data/digits/digits.onnx");
    hth_engine_config config = {.device = "cpu:mem=64MiB,threads=1", .child_store = f->dir};
    assert_ok(hth_engine_open(&config, NULL, &f->engine));
}

// A client's memory with an image in it, and a request for it.
typedef struct shared {
    client_memory m;
    hth_request_tensor in;
    call c;
} shared;

static void shared_open(hth_engine *engine, shared *s)
{
    client_memory_open(engine, SHARE_BYTES, &s->m);
}

static void shared_ask(hth_engine *engine, shared *s)
{
    s->in = (hth_request_tensor){
        .t = {.dtype = HTH_DT_F32, .shape = {4, {1, 1, 8, 8}}, .data = s->m.base, .bytes = 256}};
    s->c = (call){.r = {.model = "digits", .inputs = &s->in, .n_inputs = 1}};
    call_start(engine, &s->c);
}

static void shared_answered(shared *s)
{
    assert_ok(call_wait(&s->c));
    free(s->c.out[0].data);
}

static void shared_close(hth_engine *engine, shared *s)
{
    client_memory_close(engine, &s->m);
}

// ---- the end

static void *stop_main(void *arg)
{
    hth_engine_stop(arg);
    return NULL;
}

// More clients' memory than the socket takes descriptors: the requests wait for room, and the end
// waits for them.
static void test_end_after_requests(void **state)
{
    enum { N = 400 };
    static shared s[N];
    fixture f;
    pthread_t stops;
    siginfo_t info;
    assert_ok(hth_setting_set("engine.missed_heartbeats", "1000"));
    open_all(&f);
    int fds = test_open_fds();
    for (int i = 0; i < N; i++) {
        shared_open(f.engine, &s[i]);
    }
    assert_int_equal(test_open_fds(), fds + N); // the clients' own: the engine needs no other ones
    pid_t pid = child_of(getpid());
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
    for (int i = 0; i < N; i++) {
        shared_ask(f.engine, &s[i]);
    }
    hth_engine_drain(f.engine);
    assert_int_equal(pthread_create(&stops, NULL, stop_main, f.engine), 0);
    uint64_t until = hth_real_after(LIMIT_NS);
    while (hth_engine_ready(f.engine)) { // until it is to stop
        assert_true(hth_real_ns() < until);
        nap();
    }
    assert_int_equal(kill(pid, SIGCONT), 0);
    for (int i = 0; i < N; i++) {
        shared_answered(&s[i]);
    }
    pthread_join(stops, NULL);
    for (int i = 0; i < N; i++) {
        shared_close(f.engine, &s[i]);
    }
    fixture_close(&f);
    hth_setting_reset();
}

// ---- outputs

#define MANY 2000 // images: an answer to so many is written where its client wants it

typedef struct in_place {
    call c; // first
    float *place;
    bool written; // before anybody copied it there
} in_place;

static hth_err in_place_place(hth_request *request, hth_request_tensor *out, int n)
{
    in_place *p = request->ctx;
    p->written = p->place[0] != 0 || p->place[MANY * 10 - 1] != 0;
    out[0].t.data = p->place;
    return n == 1 && out[0].t.bytes == sizeof(float) * MANY * 10 ? HTH_OK : HTH_EINVAL;
}

// A client's memory has an input and the place of its output, next to each other.
static void test_output_in_place(void **state)
{
    fixture f;
    client_memory m;
    size_t in_bytes = (size_t)MANY * 256, out_bytes = (size_t)MANY * 40;
    open_all(&f);
    client_memory_open(f.engine, in_bytes + out_bytes, &m);
    char *base = m.base;
    for (int i = 0; i < MANY * 64; i++) {
        ((float *)(void *)base)[i] = (float)(i % 17);
    }
    hth_request_tensor in = {
        .t = {.dtype = HTH_DT_F32, .shape = {4, {MANY, 1, 8, 8}}, .data = base, .bytes = in_bytes}};
    hth_request_tensor known = {.name = "logits",
                                .t = {.data = base + in_bytes, .bytes = out_bytes}};
    call copied = {.r = {.model = "digits", .inputs = &in, .n_inputs = 1}};
    in_place p = {.c = {.r = {.model = "digits",
                              .inputs = &in,
                              .n_inputs = 1,
                              .known = &known,
                              .n_known = 1,
                              .place = in_place_place}},
                  .place = (float *)(void *)(base + in_bytes)};
    assert_ok(call_run(f.engine, &copied));
    assert_ok(call_run(f.engine, &p.c));
    assert_true(p.written);
    const float *want = copied.out[0].data;
    for (int i = 0; i < MANY * 10; i++) {
        assert_float_equal(p.place[i], want[i], 1e-3);
    }
    free(copied.out[0].data);
    client_memory_close(f.engine, &m);
    fixture_close(&f);
}

// ---- which child has what

static bool next_pid(pid_t pid)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%d", (int)pid - 1);
    FILE *f = fopen("/proc/sys/kernel/ns_last_pid", "we");
    bool set = f != NULL && fwrite(text, 1, (size_t)n, f) == (size_t)n;
    return f != NULL && fclose(f) == 0 && set;
}

// again kills the engine's process, and returns the next one's id: the same, if nobody gets it.
static pid_t again(hth_engine *engine, pid_t pid)
{
    uint64_t until = hth_real_after(LIMIT_NS);
    pid_t now;
    assert_int_equal(kill(pid, SIGKILL), 0);
    while (kill(pid, 0) == 0) { // not collected yet
        assert_true(hth_real_ns() < until);
        nap();
    }
    while ((now = child_of(getpid())) == 0 || !hth_engine_ready(engine)) {
        assert_true(now != 0 || next_pid(pid - 1)); // the thread that opens files is first
        assert_true(hth_real_ns() < until);
        nap();
    }
    return now;
}

// A child with the id of one before has not got its memory.
static void test_id_comes_again(void **state)
{
    fixture f;
    shared s;
    if (!next_pid(getpid())) {
        print_message("# SKIP: process ids cannot be chosen here: %s\n", strerror(errno));
        skip();
    }
    assert_ok(hth_setting_set("engine.restart_backoff_ms", "100"));
    open_all(&f);
    shared_open(f.engine, &s);
    pid_t pid = child_of(getpid()), before = 0;
    for (int i = 0; i < TRIES && pid != before; i++) {
        shared_ask(f.engine, &s);
        shared_answered(&s);
        before = pid;
        pid = again(f.engine, pid);
    }
    shared_ask(f.engine, &s);
    shared_answered(&s);
    shared_close(f.engine, &s);
    fixture_close(&f);
    hth_setting_reset();
    if (pid != before) {
        print_message("# SKIP: other processes took the id %d times\n", TRIES);
        skip();
    }
}

// ---- spinning

// A child says that nobody is to spin any more: hearthd's threads do as long as they may at most.
static void test_never_spin(void **state)
{
    fixture f;
    shared s;
    assert_int_equal(setenv(SPINS, "never", 1), 0);
    open_all(&f);
    shared_open(f.engine, &s);
    shared_ask(f.engine, &s);
    shared_answered(&s);
    uint64_t until = hth_real_after(LIMIT_NS);
    while (hth_spin_suspended_until() == 0) {
        assert_true(hth_real_ns() < until);
        nap();
    }
    assert_true(hth_spin_suspended_until() <= hth_real_after(HTH_CHILD_NO_SPIN_NS));
    shared_close(f.engine, &s);
    fixture_close(&f);
    unsetenv(SPINS);
}

int main(int argc, char **argv)
{
    if (hth_child_requested(argc, argv)) {
        if (getenv(SPINS) != NULL) {
            hth_spin_suspend(UINT64_MAX);
        }
        return hth_child_run(&(hth_child_config){.orphaned = child_orphaned});
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_spin), // before any other sends large tensors
        cmocka_unit_test(test_end_after_requests),
        cmocka_unit_test(test_output_in_place),
        cmocka_unit_test(test_id_comes_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
