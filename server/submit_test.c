// SPDX-License-Identifier: Apache-2.0
// Outputs in the caller's memory, and calls that nobody waits for, with the engine in this process
// and over a socket: a fake engine, which answers each input as the output of its name.
#include "base/sanitized.h"
#include "client/hearth.h"
#include "tests/rig/fake_engine.h"
#include "tests/rig/server_rig.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#define MANY 10000

typedef struct fixture {
    server_rig rig;
    hearth *h[2]; // an engine in this process; a server
} fixture;

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    char store[128];
    server_rig_make(&f->rig);
    atomic_store(&fake_released, 0);
    const char *urls[] = {f->rig.ipc};
    hth_server_config config = {.store = f->rig.store, .listen = urls, .n_listen = 1};
    snprintf(store, sizeof store, "%s/embedded", f->rig.dir);
    hearth_options embedded = {.store = store};
    *state = f;
    return hth_server_open(&config, &f->rig.server) == HTH_OK &&
                   hearth_open("inproc://", &embedded, &f->h[0]) == HEARTH_OK &&
                   hearth_open(f->rig.ipc, NULL, &f->h[1]) == HEARTH_OK
               ? 0
               : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    atomic_store(&fake_released, 1);
    hearth_close(f->h[0]);
    hearth_close(f->h[1]);
    server_rig_end(&f->rig);
    hth_free(f);
    return 0;
}

static hearth_tensor vector(const char *name, float *x, int n)
{
    return (hearth_tensor){.name = name,
                           .dtype = HEARTH_F32,
                           .rank = 1,
                           .shape = {n},
                           .data = x,
                           .bytes = 4u * (size_t)n};
}

static void refused(hearth_status got, hearth_status want, const char *part)
{
    assert_int_equal(got, want);
    if (strstr(hearth_error(), part) == NULL) {
        fail_msg("'%s' is not in: %s", part, hearth_error());
    }
}

// ---- into memory of the caller

static void test_into(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        float a[3] = {1, 2, 3}, b[2] = {4, 5}, to_a[4] = {0}, to_b[2] = {0};
        hearth_tensor in[2] = {vector("a", a, 3), vector("b", b, 2)};
        hearth_tensor out[2] = {{.name = "b", .data = to_b, .bytes = sizeof to_b},
                                {.name = "a", .data = to_a, .bytes = sizeof to_a}};
        assert_int_equal(hearth_infer_into(f->h[i], "m", in, 2, out, 2), HEARTH_OK);
        assert_memory_equal(to_a, a, sizeof a);
        assert_memory_equal(to_b, b, sizeof b);
        assert_int_equal(out[1].bytes, sizeof a); // of 16 that there are
        assert_true(out[1].rank == 1 && out[1].shape[0] == 3 && out[1].dtype == HEARTH_F32);
        assert_ptr_equal(out[1].data, to_a);

        memset(to_a, 0, sizeof to_a); // without names, all of them in their order
        hearth_tensor plain[2] = {{.data = to_a, .bytes = sizeof to_a},
                                  {.data = to_b, .bytes = sizeof to_b}};
        assert_int_equal(hearth_infer_into(f->h[i], "m", in, 2, plain, 2), HEARTH_OK);
        assert_memory_equal(to_a, a, sizeof a);
        assert_null(plain[0].name);

        float d[1];
        hearth_tensor none = vector("b", NULL, 0); // of no bytes, nowhere
        hearth_tensor both[2] = {in[0], none}, at[2] = {{.name = "a", .data = to_a, .bytes = 12},
                                                        {.name = "b", .data = NULL}};
        assert_int_equal(hearth_infer_into(f->h[i], "m", both, 2, at, 2), HEARTH_OK);
        assert_true(at[1].bytes == 0 && at[1].rank == 1 && at[1].shape[0] == 0);
        at[1].data = d;
        assert_int_equal(hearth_infer_into(f->h[i], "m", both, 2, at, 1), HEARTH_OK);

        memset(to_b, 0, sizeof to_b); // those that nobody wants
        float c[1] = {6};
        hearth_tensor three[3] = {in[0], in[1], vector("c", c, 1)};
        assert_int_equal(hearth_infer_into(f->h[i], "m", three, 3, out, 1), HEARTH_OK);
        assert_memory_equal(to_b, b, sizeof b);
    }
}

static void test_into_mistakes(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        hearth *h = f->h[i];
        float a[3] = {1, 2, 3}, b[2] = {4, 5}, to[3] = {0};
        hearth_tensor in[2] = {vector("a", a, 3), vector("b", b, 2)};
        hearth_tensor small[2] = {{.name = "a", .data = to, .bytes = 4}, {.name = "b"}};
        refused(hearth_infer_into(h, "m", in, 2, small, 2), HEARTH_EINVAL, "'a' takes 12 bytes");
        assert_true(small[0].bytes == 12 && small[1].bytes == 8); // all that it takes is said
        hearth_tensor none = {.name = "c", .data = to, .bytes = sizeof to};
        refused(hearth_infer_into(h, "m", in, 2, &none, 1), HEARTH_EINVAL, "no output 'c'");
        hearth_tensor twice[2] = {{.name = "a", .data = to, .bytes = sizeof to},
                                  {.name = "a", .data = to, .bytes = sizeof to}};
        refused(hearth_infer_into(h, "m", in, 2, twice, 2), HEARTH_EINVAL, "given twice");
        hearth_tensor unnamed = {.data = to, .bytes = sizeof to};
        refused(hearth_infer_into(h, "m", in, 2, &unnamed, 1), HEARTH_EINVAL, "name each");
        refused(hearth_infer_into(h, "m", in, 2, &unnamed, -1), HEARTH_EINVAL, "-1 outputs");
        refused(hearth_infer_into(h, NULL, in, 2, &unnamed, 1), HEARTH_EINVAL, "no model");
        refused(hearth_infer_into(h, "missing", in, 2, small, 2), HEARTH_ENOENT, "missing");
        in[0].bytes = 8;
        refused(hearth_infer_into(h, "m", in, 2, small, 2), HEARTH_EINVAL, "input 'a'");
    }
}

// ---- calls

typedef struct answer {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int n;
    hearth_status status;
    char why[200];
    float first; // of the first output
    pthread_t thread;
    hearth *closes; // in the callback
    hearth *again;  // asks once more in the callback
    float x[2];
} answer;

static void answer_init(answer *a)
{
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->more, NULL);
}

static void take(void *ctx, hearth_status status, hearth_tensor *outputs, int n_outputs)
{
    answer *a = ctx;
    pthread_mutex_lock(&a->lock);
    a->status = status;
    snprintf(a->why, sizeof a->why, "%s", status != HEARTH_OK ? hearth_error() : "");
    a->first = n_outputs > 0 ? *(const float *)outputs[0].data : 0;
    a->thread = pthread_self();
    a->n++;
    hearth *closes = a->closes, *again = a->again;
    a->again = NULL;
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->lock);
    hearth_tensors_free(outputs, n_outputs);
    hearth_close(closes);
    if (again != NULL) {
        hearth_tensor in = vector("x", a->x, 2);
        assert_int_equal(hearth_submit(again, "m", &in, 1, NULL, take, a, NULL), HEARTH_OK);
    }
}

static void answers(answer *a, int n)
{
    pthread_mutex_lock(&a->lock);
    while (a->n < n) {
        pthread_cond_wait(&a->more, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    assert_int_equal(a->n, n);
}

static void test_submit(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        answer a;
        hearth_call *call;
        answer_init(&a);
        a.x[0] = 7;
        hearth_tensor in = vector("x", a.x, 2);
        assert_int_equal(hearth_submit(f->h[i], "m", &in, 1, NULL, take, &a, &call), HEARTH_OK);
        assert_non_null(call);
        answers(&a, 1);
        assert_true(a.status == HEARTH_OK && a.first == 7);
        assert_false(pthread_equal(a.thread, pthread_self()));
        hearth_call_cancel(call); // it is long done
        pthread_t before = a.thread;

        a.again = f->h[i]; // a callback asks
        assert_int_equal(hearth_submit(f->h[i], "m", &in, 1, NULL, take, &a, NULL), HEARTH_OK);
        answers(&a, 3);
        assert_true(pthread_equal(a.thread, before)); // always the same thread

        assert_int_equal(hearth_submit(f->h[i], "missing", &in, 1, NULL, take, &a, &call),
                         HEARTH_OK);
        answers(&a, 4);
        assert_int_equal(a.status, HEARTH_ENOENT);
        assert_non_null(strstr(a.why, "missing"));
        assert_int_equal(hearth_submit(f->h[i], "late", &in, 1, NULL, take, &a, &call), HEARTH_OK);
        answers(&a, 5);
        assert_int_equal(a.status, HEARTH_EIO); // its outputs are nobody's

        in.bytes = 4;
        refused(hearth_submit(f->h[i], "m", &in, 1, NULL, take, &a, &call), HEARTH_EINVAL,
                "input 'x'");
        assert_null(call);
        in.bytes = 8;
        refused(hearth_submit(f->h[i], "m", &in, 1, NULL, NULL, &a, &call), HEARTH_EINVAL, "done");
        refused(hearth_submit(f->h[i], NULL, &in, 1, NULL, take, &a, &call), HEARTH_EINVAL,
                "no model");
        hearth_call_cancel(NULL);
    }
}

static void test_many(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        answer a;
        float hold = 1;
        hearth_tensor in = vector("x", &hold, 1);
        hearth_call *call;
        answer_init(&a);
        atomic_store(&fake_released, 0);
        for (int k = 0; k < MANY; k++) { // more than the engine's queue takes
            assert_int_equal(
                hearth_submit(f->h[i], k == 0 ? "hold" : "m", &in, 1, NULL, take, &a, &call),
                HEARTH_OK);
        }
        atomic_store(&fake_released, 1);
        answers(&a, MANY);
        assert_true(a.status == HEARTH_OK && a.first == 1);
    }
}

static void test_cancel(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        answer a, b;
        float x = 1;
        hearth_tensor in = vector("x", &x, 1);
        hearth_call *call;
        int taken = atomic_load(&fake_held);
        answer_init(&a);
        answer_init(&b);
        assert_int_equal(hearth_submit(f->h[i], "hold", &in, 1, NULL, take, &a, &call), HEARTH_OK);
        while (atomic_load(&fake_held) == taken) { // it runs
            fake_nap();
        }
        hearth_call_cancel(call);
        hearth_call_cancel(call);
        answers(&a, 1);
        assert_int_equal(a.status, HEARTH_ECANCELED);
    }
}

// Calls to a server do not wait for each other while there may be threads for them.
static void test_side_by_side(void **state)
{
    fixture *f = *state;
    answer a;
    float x = 1;
    hearth_tensor in = vector("x", &x, 1);
    answer_init(&a);
    assert_int_equal(hearth_submit(f->h[1], "m", &in, 1, NULL, take, &a, NULL), HEARTH_OK);
    answers(&a, 1); // its thread waits for another one
    int taken = atomic_load(&fake_taken);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(hearth_submit(f->h[1], "hold", &in, 1, NULL, take, &a, NULL), HEARTH_OK);
    }
    while (atomic_load(&fake_taken) < taken + 4) {
        fake_nap();
    }
    atomic_store(&fake_released, 1);
    answers(&a, 5);
}

static void test_close_waits(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        answer a;
        float x = 1;
        pthread_t soon;
        hearth_tensor in = vector("x", &x, 1);
        answer_init(&a);
        atomic_store(&fake_released, 0);
        for (int k = 0; k < 100; k++) {
            assert_int_equal(hearth_submit(f->h[i], "hold", &in, 1, NULL, take, &a, NULL),
                             HEARTH_OK);
        }
        assert_int_equal(pthread_create(&soon, NULL, fake_release_soon, NULL), 0);
        hearth_close(f->h[i]);
        f->h[i] = NULL;
        answers(&a, 100);
        pthread_join(soon, NULL);
    }
}

static void test_close_inside(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        answer a;
        float x = 1;
        hearth_tensor in = vector("x", &x, 1);
        answer_init(&a);
        atomic_store(&fake_released, 0);
        a.closes = f->h[i];
        f->h[i] = NULL;
        assert_int_equal(hearth_submit(a.closes, "m", &in, 1, NULL, take, &a, NULL), HEARTH_OK);
        answers(&a, 1);
    }
    while (atomic_load(&fake_engines) > 1) { // the server's is left
        fake_nap();
    }
}

// ---- without memory

static hth_err infer_once(hearth *h, const hearth_tensor *in)
{
    hearth_tensor *out;
    int n;
    HTH_TRY((hth_err)hearth_infer(h, "m", in, 9, &out, &n));
    hearth_tensors_free(out, n);
    return HTH_OK;
}

static hth_err submit_once(hearth *h, const hearth_tensor *in)
{
    answer a;
    answer_init(&a);
    HTH_TRY((hth_err)hearth_submit(h, "m", in, 9, NULL, take, &a, NULL));
    answers(&a, 1);
    return (hth_err)a.status;
}

static void test_without_memory(void **state)
{
    fixture *f = *state;
    float x[9] = {1}, y = 0;
    hearth_tensor in[9], to = {.name = "b", .data = &y, .bytes = sizeof y};
    for (int i = 0; i < 9; i++) { // more than need no memory of their own
        static char name[9][2] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
        in[i] = vector(name[i], &x[i], 1);
    }
    assert_ok(infer_once(f->h[0], in));
    FAULT_LOOP((hth_err)hearth_infer_into(f->h[0], "m", in, 9, &to, 1));
    FAULT_LOOP(infer_once(f->h[0], in));
}

// What a call had is freed after its callback, by two threads: all of it is when they have ended.
static void test_submit_without_memory(void **state)
{
    fixture *f = *state;
    float x[9] = {1};
    hearth_tensor in[9];
    char store[128];
    hearth *h;
    for (int i = 0; i < 9; i++) {
        static char name[9][2] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
        in[i] = vector(name[i], &x[i], 1);
    }
    snprintf(store, sizeof store, "%s/another", f->rig.dir);
    hearth_close(f->h[0]); // their threads allocate too
    hearth_close(f->h[1]);
    hth_server_close(f->rig.server);
    f->h[0] = f->h[1] = NULL;
    f->rig.server = NULL;
    int64_t live = hth_alloc_live();
    assert_int_equal(hearth_open("inproc://", &(hearth_options){.store = store}, &h), HEARTH_OK);
    hth_err err = HTH_ENOMEM;
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        hth_fault_alloc(nth);
        err = submit_once(h, in);
        hth_fault_alloc(0);
        assert_true(err == HTH_OK || err == HTH_ENOMEM);
        assert_true(nth < 1000);
    }
    assert_ok(submit_once(h, in));
    hearth_close(h);
    assert_int_equal(hth_alloc_live(), live);
}

// ---- event loops

static void test_events(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        answer a;
        float x = 3;
        hearth_tensor in = vector("x", &x, 1);
        answer_init(&a);
        assert_int_equal(hearth_event_run(f->h[i]), -1);
        int fd = hearth_event_fd(f->h[i]), n = 0;
        assert_true(fd >= 0);
        assert_int_equal(hearth_event_fd(f->h[i]), fd);
        for (int k = 0; k < 10; k++) {
            assert_int_equal(hearth_submit(f->h[i], "m", &in, 1, NULL, take, &a, NULL), HEARTH_OK);
        }
        while (n < 10) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            assert_int_equal(poll(&p, 1, -1), 1);
            n += hearth_event_run(f->h[i]);
        }
        answers(&a, 10);
        assert_true(pthread_equal(a.thread, pthread_self()));
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 0), 0); // nothing is left

        assert_int_equal(hearth_submit(f->h[i], "m", &in, 1, NULL, take, &a, NULL), HEARTH_OK);
        hearth_close(f->h[i]); // calls what is left
        f->h[i] = NULL;
        answers(&a, 11);
    }
}

typedef struct nested {
    hearth *h;
    int n, inside;
} nested;

static void take_nested(void *ctx, hearth_status status, hearth_tensor *outputs, int n_outputs)
{
    nested *x = ctx;
    hearth_tensors_free(outputs, n_outputs);
    x->n += status == HEARTH_OK;
    x->inside += hearth_event_run(x->h);
}

// A callback that runs callbacks: one comes after the other, all the same.
static void test_events_nested(void **state)
{
    fixture *f = *state;
    nested x = {.h = f->h[0]};
    float y = 3;
    hearth_tensor in = vector("x", &y, 1);
    int fd = hearth_event_fd(f->h[0]);
    for (int k = 0; k < 10; k++) {
        assert_int_equal(hearth_submit(f->h[0], "m", &in, 1, NULL, take_nested, &x, NULL),
                         HEARTH_OK);
    }
    while (x.n < 10) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, -1), 1);
        (void)hearth_event_run(f->h[0]);
    }
    assert_int_equal(x.inside, 0);
}

static void test_events_late(void **state)
{
    fixture *f = *state;
    answer a;
    float x = 3;
    hearth_tensor in = vector("x", &x, 1);
    answer_init(&a);
    assert_int_equal(hearth_submit(f->h[0], "m", &in, 1, NULL, take, &a, NULL), HEARTH_OK);
    answers(&a, 1);
    assert_int_equal(hearth_event_fd(f->h[0]), -1);
    assert_non_null(strstr(hearth_error(), "have a thread"));
}

// cancel_forked is a child's: its connection has a stream for each call.
static int cancel_forked(const char *url, int runs)
{
    hearth *h;
    hearth_call *call;
    answer a;
    float x = 1;
    char go;
    hearth_tensor in = vector("x", &x, 1);
    answer_init(&a);
    if (hearth_open(url, NULL, &h) != HEARTH_OK ||
        hearth_submit(h, "hold", &in, 1, NULL, take, &a, &call) != HEARTH_OK ||
        read(runs, &go, 1) != 1) {
        return 1;
    }
    hearth_call_cancel(call);
    answers(&a, 1);
    hearth_close(h);
    return a.status == HEARTH_ECANCELED ? 0 : 2;
}

static void test_forked_cancels(void **state)
{
    fixture *f = *state;
    int runs[2], status, held = atomic_load(&fake_held);
    if (HTH_SANITIZED_THREAD) { // which starts no threads after such a fork
        skip();
    }
    assert_int_equal(pipe(runs), 0);
    pid_t p = fork();
    if (p == 0) {
        _exit(cancel_forked(f->rig.ipc, runs[0]));
    }
    while (atomic_load(&fake_held) == held) {
        fake_nap();
    }
    assert_int_equal(write(runs[1], "", 1), 1);
    assert_int_equal(waitpid(p, &status, 0), p);
    assert_int_equal(status, 0);
    close(runs[0]);
    close(runs[1]);
}

static void test_forked(void **state)
{
    fixture *f = *state;
    answer a;
    float x = 3;
    hearth_tensor in = vector("x", &x, 1);
    hearth_call *call;
    answer_init(&a);
    assert_int_equal(hearth_submit(f->h[0], "hold", &in, 1, NULL, take, &a, &call), HEARTH_OK);
    pid_t p = fork();
    if (p == 0) {
        hearth_call_cancel(call); // its parent's
        bool denied = hearth_submit(f->h[0], "m", &in, 1, NULL, take, &a, NULL) == HEARTH_EINVAL &&
                      hearth_event_fd(f->h[0]) == -1;
        hearth_close(f->h[0]);
        _exit(denied ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(p, &status, 0), p);
    assert_int_equal(status, 0);
    assert_int_equal(a.n, 0);
    hearth_call_cancel(call);
    answers(&a, 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_into),          T(test_into_mistakes),  T(test_submit),
        T(test_many),          T(test_cancel),         T(test_close_waits),
        T(test_side_by_side),  T(test_events),         T(test_events_late),
        T(test_close_inside),  T(test_forked),         T(test_forked_cancels),
        T(test_events_nested), T(test_without_memory), T(test_submit_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
