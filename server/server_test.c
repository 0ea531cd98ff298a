// SPDX-License-Identifier: Apache-2.0
// Client and server against each other, over ipc, tcp and in process, with a fake engine: answers,
// errors, shared memory, concurrency, cancellation, killed clients, a second server, and stopping
// while busy.
#include "base/clock.h"
#include "client/hearth.h"
#include "client/safetensors.h"
#include "tests/rig/fake_engine.h"
#include "tests/rig/free_port.h"
#include "base/settings.h"
#include "runtime/job_index.h"
#include "tests/rig/server_rig.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct fixture {
    server_rig rig;
    char tcp[64];
} fixture;

static hth_err fixture_open(fixture *f)
{
    const char *urls[] = {f->rig.ipc, f->tcp, "inproc://server-test"};
    hth_server_config config = {.store = f->rig.store, .listen = urls, .n_listen = 3};
    return hth_server_open(&config, &f->rig.server);
}

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    server_rig_make(&f->rig);
    snprintf(f->tcp, sizeof f->tcp, "tcp://127.0.0.1:%d", free_port(2));
    atomic_store(&fake_released, 0);
    hth_err err = fixture_open(f);
    if (err != HTH_OK) {
        print_error("%s\n", hth_err_detail());
    }
    *state = f;
    return err == HTH_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    atomic_store(&fake_released, 1);
    server_rig_end(&f->rig);
    hth_free(f);
    return 0;
}

static hearth *open_or_fail(const char *url, uint64_t timeout_ms)
{
    hearth *h;
    hearth_options o = {.timeout_ms = timeout_ms};
    hearth_status s = hearth_open(url, &o, &h);
    if (s != HEARTH_OK) {
        fail_msg("%s: %s", url, hearth_error());
    }
    return h;
}

static void wait_for(atomic_int *v, int want)
{
    for (int i = 0; i < 120000 && atomic_load(v) != want; i++) {
        fake_nap();
    }
    assert_int_equal(atomic_load(v), want);
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

// echo sends n floats, and two other inputs around them, and checks that all come back.
static void echo(hearth *h, int n)
{
    float *x = hth_alloc(4u * (size_t)n + 4);
    int64_t ids[3] = {1, INT64_MIN, 77};
    for (int i = 0; i < n; i++) {
        x[i] = (float)i * 0.5f;
    }
    hearth_tensor in[3] = {{.name = "ids",
                            .dtype = HEARTH_I64,
                            .rank = 2,
                            .shape = {1, 3},
                            .data = ids,
                            .bytes = sizeof ids},
                           vector("x", x, n),
                           {.name = "none", .dtype = HEARTH_U8, .rank = 2, .shape = {4, 0}}};
    hearth_tensor *out;
    int n_out;
    hearth_status s = hearth_infer(h, "m", in, 3, &out, &n_out);
    if (s != HEARTH_OK) {
        fail_msg("%s", hearth_error());
    }
    assert_int_equal(n_out, 3);
    assert_string_equal(out[1].name, "x");
    assert_int_equal(out[1].rank, 1);
    assert_int_equal(out[1].shape[0], n);
    assert_int_equal(out[1].bytes, 4 * n);
    assert_memory_equal(out[1].data, x, 4u * (size_t)n);
    assert_int_equal((uintptr_t)out[0].data % 8, 0);
    assert_memory_equal(out[0].data, ids, sizeof ids);
    assert_int_equal(out[2].bytes, 0);
    assert_int_equal(out[2].shape[0], 4);
    hearth_tensors_free(out, n_out);
    hth_free(x);
}

static void test_echo(void **state)
{
    fixture *f = *state;
    const char *urls[] = {f->rig.ipc, f->tcp, "inproc://server-test"};
    for (int i = 0; i < 3; i++) {
        hearth *h = open_or_fail(urls[i], 0);
        echo(h, 1);
        echo(h, 0);
        echo(h, 3000000); // 12 MB, many socket buffers
        hearth_close(h);
    }
}

static void test_errors(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    float x[2] = {1, 2};
    hearth_tensor in = vector("x", x, 2), *out;
    int n;
    assert_int_equal(hearth_infer(h, "missing", &in, 1, &out, &n), HEARTH_ENOENT);
    assert_string_equal(hearth_error(), "there is no model 'missing'; there are: strict, hold");
    in.dtype = HEARTH_I32;
    assert_int_equal(hearth_infer(h, "strict", &in, 1, &out, &n), HEARTH_EINVAL);
    assert_string_equal(hearth_error(), "input 'x': the model wants FP32, not INT32");
    assert_int_equal(hearth_infer(h, "late", &in, 1, &out, &n), HEARTH_EIO);
    in.bytes = 4;
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_EINVAL);
    in.rank = 9;
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_EINVAL);
    char *json;
    assert_int_equal(hearth_query(h, "nonsense", NULL, NULL, NULL, &json), HEARTH_ENOENT);
    assert_string_equal(hearth_error(), "there is no command 'nonsense'");
    assert_int_equal(hearth_query(h, "drain", NULL, NULL, NULL, &json), HEARTH_ENOENT);
    assert_int_equal(hearth_remove(h, "a:b"), HEARTH_EINVAL);
    echo(h, 5);
    hearth_close(h);
    assert_int_equal(hearth_open("ipc:///tmp/no-hearth-is-here", NULL, &h), HEARTH_EIO);
    assert_null(h);
    assert_int_equal(hearth_open("inproc://", NULL, &h), HEARTH_EINVAL);
}

static void test_remote_names_no_files(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->tcp, 0);
    char *json;
    hearth_import_result r;
    assert_int_equal(hearth_query(h, "bench", "{\"out\":\"/tmp/x\"}", NULL, NULL, &json),
                     HEARTH_EDENIED);
    // The client reads the model; what it would export takes a role.
    assert_int_equal(hearth_import(h, "m", "/tmp/no-file/m.onnx", -1, NULL, NULL, &r),
                     HEARTH_ENOENT);
    assert_int_equal(hearth_export(h, "m", "/tmp/no-folder/m.onnx"), HEARTH_EDENIED);
    hearth_close(h);
}

// What a client reads and writes itself is no path to the server, whoever names it.
static void test_documents_are_no_paths(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    char *json;
    assert_int_equal(
        hearth_query(h, "curve", "{\"model\":\"m\",\"out\":\"/tmp/x\"}", NULL, NULL, &json),
        HEARTH_EINVAL);
    assert_non_null(strstr(hearth_error(), "'out' is a document here"));
    hearth_close(h);
}

static void test_garbage(void **state)
{
    fixture *f = *state;
    nng_socket s;
    nng_msg *m;
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(nng_dial(s, f->rig.ipc, NULL, 0), 0);
    static const struct {
        char frame[80];
        size_t bytes;
    } bad[] = {
        {"", 0}, {"x", 1}, {"HTH1", 4}, {"HTH1\xff\xff\xff\xff", 8}, {"HTH1\x04\0\0\0garbage", 80}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(nng_msg_alloc(&m, 0), 0);
        nng_msg_append(m, bad[i].frame, bad[i].bytes);
        assert_int_equal(nng_sendmsg(s, m, 0), 0);
        assert_int_equal(nng_recvmsg(s, &m, 0), 0); // an error reply, not silence
        assert_true(nng_msg_len(m) > 8);
        nng_msg_free(m);
    }
    nng_close(s);
    hearth *h = open_or_fail(f->rig.ipc, 0);
    echo(h, 10);
    hearth_close(h);
}

static int count_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    int *calls = ctx;
    assert_string_equal(what, "measuring");
    assert_true(done >= 1 && done <= total);
    return ++*calls < 0;
}

static int stop_at_once(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    return 1;
}

static void test_queries(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    char *json;
    int calls = 0;
    assert_int_equal(hearth_query(h, "devices", NULL, NULL, NULL, &json), HEARTH_OK);
    assert_string_equal(json, FAKE_DEVICES);
    hearth_free(json);
    assert_int_equal(hearth_query(h, "models", NULL, NULL, NULL, &json), HEARTH_OK);
    assert_string_equal(json, "{\"models\":[],\"aliases\":[]}");
    hearth_free(json);
    assert_int_equal(hearth_query(h, "bench a\"b:3", NULL, count_progress, &calls, &json),
                     HEARTH_OK);
    assert_string_equal(json, "{\"arguments\":{\"model\":\"a\\\"b:3\"}}");
    assert_true(calls >= 2);
    hearth_free(json);
    int before = atomic_load(&fake_canceled);
    assert_int_equal(hearth_query(h, "bench", "{}", stop_at_once, NULL, &json), HEARTH_ECANCELED);
    assert_null(json);
    assert_int_equal(atomic_load(&fake_canceled), before + 1);
    hearth_close(h);
}

// Priority and timeout arrive at the engine as they were given; 0 is "not said".
static void test_infer_options(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    hearth_infer_options o = {.priority = 7, .timeout_us = 1ull << 40};
    float x[1] = {1};
    hearth_tensor in = vector("x", x, 1), *out;
    int n;
    assert_int_equal(hearth_infer_with(h, "m", &in, 1, &o, &out, &n), HEARTH_OK);
    hearth_tensors_free(out, n);
    assert_int_equal(atomic_load(&fake_last_priority), 7);
    assert_true(atomic_load(&fake_last_timeout_us) == 1ull << 40);
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_OK);
    hearth_tensors_free(out, n);
    assert_int_equal(atomic_load(&fake_last_priority), 0);
    assert_true(atomic_load(&fake_last_timeout_us) == 0);
    hearth_close(h);
}

static void test_shared_memory(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    void *buffer;
    int n_out;
    hearth_tensor *out;
    size_t n = 1u << 20;
    assert_int_equal(hearth_buffer_alloc(h, 4 * n, &buffer), HEARTH_OK);
    float *x = buffer;
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)i;
    }
    hearth_tensor in = vector("x", x + 16, (int)n - 16);
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n_out), HEARTH_OK);
    assert_memory_equal(out[0].data, x + 16, 4 * (n - 16));
    hearth_tensors_free(out, n_out);
    // The server reads the same pages: its address is a mapping whose start is page-aligned, not a
    // message's.
    assert_int_equal((uintptr_t)fake_last_input % 4096, 64);
    in = vector("x", x + 1, 100); // not 64-byte aligned: travels in the message
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n_out), HEARTH_OK);
    assert_memory_equal(out[0].data, x + 1, 400);
    hearth_tensors_free(out, n_out);
    hearth_buffer_free(h, buffer);
    hearth_close(h);
}

// maps counts the server's (this process's) mappings of shared buffers.
static int maps(void)
{
    char line[512];
    int n = 0;
    FILE *m = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, m) != NULL) {
        n += strstr(line, "memfd:hearth (deleted)") != NULL; // "hearth-ring" is a ring
    }
    fclose(m);
    return n;
}

// What a client's buffers take of the server's address space is bounded; beyond that they are plain
// memory, and work.
static void test_mapped_bytes(void **state)
{
    fixture *f = *state;
    int before = maps();
    hearth *h = open_or_fail(f->rig.ipc, 0), *other = open_or_fail(f->rig.ipc, 0);
    void *buffer[4];
    int n_out;
    hearth_tensor *out;
    assert_ok(hth_setting_set("shm.bytes", "1MiB"));
    assert_int_equal(hearth_buffer_alloc(h, 2 << 20, &buffer[0]), HEARTH_OK);
    assert_int_equal(maps(), before);
    assert_int_equal(hearth_buffer_alloc(h, 1 << 20, &buffer[1]), HEARTH_OK);
    assert_int_equal(maps(), before + 2); // the client's, and the server's
    assert_int_equal(hearth_buffer_alloc(other, 1 << 16, &buffer[2]),
                     HEARTH_OK); // of the same user
    assert_int_equal(maps(), before + 2);
    hearth_tensor in = vector("x", buffer[2], 1000);
    memset(buffer[2], 0, 4000);
    assert_int_equal(hearth_infer(other, "m", &in, 1, &out, &n_out), HEARTH_OK);
    hearth_tensors_free(out, n_out);
    hearth_buffer_free(h, buffer[1]);
    assert_int_equal(hearth_buffer_alloc(other, 1 << 16, &buffer[3]), HEARTH_OK);
    assert_int_equal(maps(), before + 2);
    assert_ok(hth_setting_set("shm.bytes", "64GiB"));
    hearth_buffer_free(h, buffer[0]);
    hearth_close(other);
    hearth_close(h);
    for (int i = 0; i < 120000 && maps() != before; i++) {
        fake_nap();
    }
    assert_int_equal(maps(), before);
}

static void test_killed_client(void **state)
{
    fixture *f = *state;
    int before = atomic_load(&fake_canceled), mapped = maps(), pipefd[2];
    assert_int_equal(pipe(pipefd), 0);
    pid_t child = fork();
    if (child == 0) {
        // A forked nng is of no use: the child becomes a fresh image of this program (main).
        char fd[16];
        snprintf(fd, sizeof fd, "%d", pipefd[1]);
        execl("/proc/self/exe", "server_test", "victim", f->rig.ipc, fd, (char *)NULL);
        _exit(1);
    }
    char c;
    assert_int_equal(read(pipefd[0], &c, 1), 1);
    wait_for(&fake_held, 1);
    assert_int_equal(maps(), mapped + 1);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    wait_for(&fake_canceled, before + 1);
    for (int i = 0; i < 120000 && maps() != mapped; i++) {
        fake_nap();
    }
    assert_int_equal(maps(), mapped);
    hearth *h = open_or_fail(f->rig.ipc, 0);
    echo(h, 10);
    hearth_close(h);
    close(pipefd[0]);
    close(pipefd[1]);
}

static int victim(const char *url, int fd)
{
    hearth *h;
    void *buffer;
    hearth_tensor *out;
    int n;
    if (hearth_open(url, NULL, &h) != HEARTH_OK ||
        hearth_buffer_alloc(h, 1 << 20, &buffer) != HEARTH_OK || write(fd, "x", 1) != 1) {
        return 1;
    }
    hearth_tensor in = vector("x", buffer, 1 << 18);
    return hearth_infer(h, "hold", &in, 1, &out, &n) != HEARTH_OK;
}

static void test_timeout_cancels(void **state)
{
    fixture *f = *state;
    int before = atomic_load(&fake_canceled);
    hearth *h = open_or_fail(f->rig.ipc, 3000);
    float x[1] = {1};
    hearth_tensor in = vector("x", x, 1), *out;
    int n;
    assert_int_equal(hearth_infer(h, "hold", &in, 1, &out, &n), HEARTH_ETIMEDOUT);
    wait_for(&fake_canceled, before + 1);
    echo(h, 3);
    hearth_close(h);
}

typedef struct caller {
    pthread_t thread;
    hearth *h;
    int id, bad;
} caller;

static void *caller_main(void *arg)
{
    caller *c = arg;
    for (int i = 0; i < 100; i++) {
        float x[257];
        int n = 1 + (i * 7 + c->id) % 257, n_out;
        for (int k = 0; k < n; k++) {
            x[k] = (float)(c->id * 1000 + i + k);
        }
        hearth_tensor in = vector(NULL, x, n), *out;
        if (hearth_infer(c->h, "m", &in, 1, &out, &n_out) != HEARTH_OK || n_out != 1 ||
            memcmp(out[0].data, x, 4u * (size_t)n) != 0) {
            c->bad++;
        }
        hearth_tensors_free(out, n_out);
    }
    return NULL;
}

static void test_concurrent(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    caller c[16];
    for (int i = 0; i < 16; i++) {
        c[i] = (caller){.h = h, .id = i};
        assert_int_equal(pthread_create(&c[i].thread, NULL, caller_main, &c[i]), 0);
    }
    for (int i = 0; i < 16; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].bad, 0);
    }
    hearth_close(h);
}

// Whichever allocation fails, on either side, the call ends with an error and everything it held is
// given back.
static void test_out_of_memory(void **state)
{
    fixture *f = *state;
    hearth *h;
    const hearth_options o = {.timeout_ms = 300000, .no_ring = 1};
    assert_int_equal(hearth_open(f->rig.ipc, &o, &h), HEARTH_OK);
    float x[4] = {1, 2, 3, 4};
    hearth_tensor in = vector("x", x, 4), *out;
    int n, failures = 0;
    echo(h, 4); // the call's context exists
    int64_t live = hth_alloc_live();
    for (int i = 0; i < 50; i++) { // what the server frees after its answer has come
        fake_nap();
        live = hth_alloc_live() < live ? hth_alloc_live() : live;
    }
    for (uint64_t nth = 1; nth < 200; nth++) {
        uint64_t before = hth_alloc_count();
        hth_fault_alloc(nth);
        hearth_status s = hearth_infer(h, "m", &in, 1, &out, &n);
        bool reached = hth_alloc_count() - before >= nth;
        hth_fault_alloc(0);
        if (s == HEARTH_OK) {
            assert_memory_equal(out[0].data, x, sizeof x);
            hearth_tensors_free(out, n);
        } else {
            // EIO: there was no memory for the reply, and the connection was closed
            assert_true(s == HEARTH_ENOMEM || s == HEARTH_ECORRUPT || s == HEARTH_EIO);
            failures++;
        }
        if (!reached && s == HEARTH_OK) { // else it was the connection that ended with the last one
            break;
        }
    }
    assert_true(failures > 5);
    for (int i = 0; i < 120000 && hth_alloc_live() != live; i++) {
        fake_nap(); // the server's side of the last call
    }
    assert_int_equal(hth_alloc_live(), live);
    echo(h, 4);
    hearth_close(h);
}

static void test_second_server(void **state)
{
    fixture *f = *state, second = *f;
    snprintf(second.rig.store, sizeof second.rig.store, "%s/second", f->rig.dir);
    assert_int_equal(fixture_open(&second), HTH_EBUSY);
    assert_null(second.rig.server);
    assert_non_null(strstr(hth_err_detail(), "another hearthd already listens on ipc://"));
    hearth *h = open_or_fail(f->rig.ipc, 0); // the first one is unharmed
    echo(h, 10);
    hearth_close(h);
}

static void *hold_main(void *arg)
{
    caller *c = arg;
    float x[3] = {1, 2, (float)c->id};
    hearth_tensor in = vector("x", x, 3), *out;
    int n = 0;
    hearth_status status = hearth_infer(c->h, "hold", &in, 1, &out, &n);
    if (status != HEARTH_OK) {
        fprintf(stderr, "a held request: %s\n", hearth_error());
    }
    c->bad = status != HEARTH_OK || memcmp(out[0].data, x, 12) != 0;
    hearth_tensors_free(out, n);
    return NULL;
}

static void *stop_main(void *arg)
{
    hth_server_stop(arg);
    return NULL;
}

static void test_stop_while_busy(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    caller c[4];
    pthread_t stopper;
    int before = atomic_load(&fake_taken);
    for (int i = 0; i < 4; i++) {
        c[i] = (caller){.h = h, .id = i};
        assert_int_equal(pthread_create(&c[i].thread, NULL, hold_main, &c[i]), 0);
    }
    wait_for(&fake_held, 1);
    wait_for(&fake_taken, before + 4); // the other three are in the engine's queue
    assert_int_equal(pthread_create(&stopper, NULL, stop_main, f->rig.server), 0);
    float x[1] = {1};
    hearth_tensor in = vector("x", x, 1), *out;
    int n;
    char *json;
    hearth_status s = HEARTH_OK;
    for (int i = 0; i < 60000 && s != HEARTH_ECANCELED; i++) {
        s = hearth_query(h, "models", NULL, NULL, NULL, &json); // answered until the stop begins
        hearth_free(json);
        fake_nap();
    }
    assert_int_equal(s, HEARTH_ECANCELED);
    assert_string_equal(hearth_error(), "the server is stopping: it takes no new requests");
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_ECANCELED);
    atomic_store(&fake_released, 1);
    pthread_join(stopper, NULL);
    for (int i = 0; i < 4; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].bad, 0);
    }
    hearth_close(h);
}

static void test_restart(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    void *buffer;
    assert_int_equal(hearth_buffer_alloc(h, 400000, &buffer), HEARTH_OK);
    memset(buffer, 1, 400000);
    hth_server_close(f->rig.server);
    f->rig.server = NULL;
    assert_int_equal(fixture_open(f), HTH_OK); // the path is free again
    hearth_tensor in = vector("x", buffer, 100000), *out;
    int n;
    hearth_status s = HEARTH_EIO;
    for (int i = 0; i < 100 && s == HEARTH_EIO; i++) {
        s = hearth_infer(h, "m", &in, 1, &out, &n); // reconnects, maps the buffer again
    }
    assert_int_equal(s, HEARTH_OK);
    assert_memory_equal(out[0].data, buffer, 400000);
    hearth_tensors_free(out, n);
    hearth_close(h);
}

// restart_with has another server in place of the first one; `in` is sent until it is answered.
static void restart_with(fixture *f, hearth *h, const char *shm_bytes, hearth_tensor *in)
{
    hearth_status s = HEARTH_EIO;
    hearth_tensor *out;
    int n;
    hth_server_close(f->rig.server);
    f->rig.server = NULL;
    assert_ok(hth_setting_set("shm.bytes", shm_bytes));
    assert_int_equal(fixture_open(f), HTH_OK);
    for (int i = 0; i < 100 && s == HEARTH_EIO; i++) {
        s = hearth_infer(h, "m", in, 1, &out, &n);
    }
    assert_int_equal(s, HEARTH_OK);
    hearth_tensors_free(out, n);
}

// A buffer that a new server does not map is copied from, and nobody asks that server again.
static void test_restart_unmapped(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    void *buffer;
    int before = maps(), n;
    assert_int_equal(hearth_buffer_alloc(h, 2 << 20, &buffer), HEARTH_OK);
    assert_int_equal(maps(), before + 2); // the client's, and the server's
    memset(buffer, 1, 4000);
    hearth_tensor in = vector("x", buffer, 1000), *out;
    restart_with(f, h, "1MiB", &in);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_OK);
        assert_memory_equal(out[0].data, buffer, 4000);
        hearth_tensors_free(out, n);
        assert_int_equal(maps(), before + 1);
        assert_ok(hth_setting_set("shm.bytes", "64GiB")); // it would map the buffer now
    }
    restart_with(f, h, "64GiB", &in);
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_OK);
    hearth_tensors_free(out, n);
    assert_int_equal(maps(), before + 2);
    hearth_close(h);
}

// A server that goes on with jobs ends the records of those that the one before it has lost.
static void test_lost_jobs(void **state)
{
    fixture *f = *state;
    hth_store *store;
    uint64_t id;
    json_t *record;
    hth_server_close(f->rig.server);
    assert_ok(hth_store_open(f->rig.store, true, false, &store));
    assert_ok(hth_job_index_add(store, "lost", "alice", &id));
    hth_store_close(store);
    const char *urls[] = {f->rig.ipc};
    hth_server_config config = {
        .store = f->rig.store, .listen = urls, .n_listen = 1, .resume = true};
    assert_ok(hth_server_open(&config, &f->rig.server));
    hth_server_close(f->rig.server);
    f->rig.server = NULL;
    assert_ok(hth_store_open(f->rig.store, true, false, &store));
    assert_ok(hth_job_index_get(store, id, &record));
    assert_string_equal(json_string_value(json_object_get(record, "state")), "canceled");
    json_decref(record);
    hth_store_close(store);
}

// train submits a job that is left here, with `data`, and ends it if it is taken.
static hearth_status train(hearth *h, const char *data)
{
    char args[200], *json;
    snprintf(args, sizeof args, "{\"model\":\"m\",\"save-as\":\"j\",\"detach\":true,\"data\":{%s}}",
             data);
    hearth_status s = hearth_query(h, "train", args, NULL, NULL, &json);
    if (s == HEARTH_OK) {
        hearth_free(json);
        fake_job_end("finished");
    }
    return s;
}

// A job is not left to fail later, for a name that nobody has given, where what was sent for it has
// gone before it was submitted.
static void test_sent_data_gone(void **state)
{
    fixture *f = *state;
    hearth *h = open_or_fail(f->rig.ipc, 0);
    const char *sent = "\"dataset\":\"upload-0123456789abcdef01234567\",\"own\":true";
    assert_int_equal(train(h, sent), HEARTH_ENOENT);
    assert_non_null(strstr(hearth_error(), "what was sent as 'data' is no longer in the store"));
    assert_int_equal(train(h, "\"dataset\":\"named\""), HEARTH_OK);
    hearth_close(h);
}

static void test_embedded(void **state)
{
    fixture *f = *state;
    char store[128];
    snprintf(store, sizeof store, "%s/embedded", f->rig.dir);
    hearth_options o = {.store = store};
    hearth *a, *b;
    assert_int_equal(hearth_open("inproc://", &o, &a), HEARTH_OK);
    assert_int_equal(hearth_open("inproc://", &o, &b), HEARTH_OK);
    echo(a, 100);
    echo(b, 100);
    hearth_close(a);
    echo(b, 100);
    hearth_close(b);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "victim") == 0) {
        return victim(argv[2], atoi(argv[3]));
    }
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_echo),
        T(test_errors),
        T(test_remote_names_no_files),
        T(test_documents_are_no_paths),
        T(test_garbage),
        T(test_queries),
        T(test_shared_memory),
        T(test_mapped_bytes),
        T(test_killed_client),
        T(test_timeout_cancels),
        T(test_concurrent),
        T(test_out_of_memory),
        T(test_second_server),
        T(test_stop_while_busy),
        T(test_restart),
        T(test_restart_unmapped),
        T(test_lost_jobs),
        T(test_sent_data_gone),
        T(test_embedded),
        T(test_infer_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
