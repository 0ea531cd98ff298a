// SPDX-License-Identifier: Apache-2.0
// Local clients over rings in shared memory, with a fake engine: the public client as it is, killed
// ones, ones that do not keep to the rules, and servers that have no rings.
#include "tests/rig/raw_ring.h"

#include "base/clock.h"
#include "base/ipc/memfd.h"
#include "base/settings.h"
#include "client/hearth.h"
#include "client/wire.h"
#include "server/net/account.h"
#include "tests/rig/fake_engine.h"
#include "tests/rig/server_rig.h"

#include <nng/protocol/reqrep0/req.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_CALLERS 24 // more than there are channels
#define N_CALLS   200

static int setup(void **state)
{
    server_rig *r = hth_calloc(1, sizeof *r);
    server_rig_make(r);
    hth_setting_reset();
    atomic_store(&fake_released, 0);
    atomic_store(&fake_canceled, 0);
    atomic_store(&fake_hold_bytes, 0);
    fake_spin_ns = 20000;
    *state = r;
    return 0;
}

static void serve(server_rig *rig)
{
    const char *urls[] = {rig->ipc};
    hth_server_config config = {.store = rig->store, .listen = urls, .n_listen = 1};
    assert_ok(hth_server_open(&config, &rig->server));
}

static int teardown(void **state)
{
    server_rig *r = *state;
    atomic_store(&fake_released, 1);
    server_rig_end(r);
    hth_setting_reset();
    hth_free(r);
    return 0;
}

// mapped counts this process's mappings of rings: the server's and its own clients'.
static int mapped(void)
{
    char line[512];
    int n = 0;
    FILE *m = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, m) != NULL) {
        n += strstr(line, "memfd:hearth-ring") != NULL;
    }
    fclose(m);
    return n;
}

static void wait_mapped(int want)
{
    for (int i = 0; i < 120000 && mapped() != want; i++) {
        fake_nap();
    }
    assert_int_equal(mapped(), want);
}

static void wait_count(atomic_int *v, int want)
{
    for (int i = 0; i < 120000 && atomic_load(v) < want; i++) {
        fake_nap();
    }
    assert_true(atomic_load(v) >= want);
}

static hearth *connect_to(const server_rig *rig, const hearth_options *options)
{
    hearth *h;
    hearth_status s = hearth_open(rig->ipc, options, &h);
    if (s != HEARTH_OK) {
        fail_msg("%s: %s", rig->ipc, hearth_error());
    }
    return h;
}

static hearth_tensor vector(float *x, size_t n)
{
    return (hearth_tensor){.name = "x",
                           .dtype = HEARTH_F32,
                           .rank = 1,
                           .shape = {(int64_t)n},
                           .data = x,
                           .bytes = n * sizeof *x};
}

// echo sends n floats that lie at x and compares what comes back; false: something is wrong.
static bool echo_at(hearth *h, float *x, size_t n, float first)
{
    hearth_tensor in = vector(x, n), *out;
    int n_out = 0;
    for (size_t i = 0; i < n; i++) {
        x[i] = first + (float)i;
    }
    bool good = hearth_infer(h, "m", &in, 1, &out, &n_out) == HEARTH_OK && n_out == 1 &&
                out[0].bytes == in.bytes && (uintptr_t)out[0].data % 8 == 0 &&
                (n == 0 || memcmp(out[0].data, x, in.bytes) == 0);
    hearth_tensors_free(out, n_out);
    return good;
}

static bool echo(hearth *h, size_t n, float first)
{
    float *x = hth_alloc((n + 1) * sizeof *x);
    bool good = echo_at(h, x, n, first);
    hth_free(x);
    return good;
}

static void test_sizes(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *h = connect_to(r, NULL);
    assert_int_equal(mapped(), 0); // nothing was asked yet
    assert_true(echo(h, 3, 1));
    assert_int_equal(mapped(), 2);                   // the server's and the client's
    for (size_t n = 0; n < 2000000; n = n * 3 + 1) { // the last ones over the socket
        assert_true(echo(h, n, (float)n));
    }
    for (int i = 0; i < 300; i++) { // round the ring's end
        assert_true(echo(h, 1000 + (size_t)i * 40, (float)i));
    }
    void *shared;
    assert_int_equal(hearth_buffer_alloc(h, 8 << 20, &shared), HEARTH_OK);
    for (int i = 0; i < 5; i++) { // in by its place, out too large for a channel
        assert_true(echo_at(h, shared, 1500000, (float)i));
        assert_true(echo_at(h, shared, 150000, (float)i));
        assert_true(echo_at(h, shared, 10, (float)i));
    }
    hearth_buffer_free(h, shared);
    assert_int_equal(mapped(), 2);
    hearth_close(h);
    wait_mapped(0);
}

static void test_errors(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *h = connect_to(r, NULL);
    float x[2] = {1, 2};
    hearth_tensor in = vector(x, 2), *out;
    int n;
    assert_true(echo(h, 3, 1) && echo(h, 3, 1));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hearth_infer(h, "missing", &in, 1, &out, &n), HEARTH_ENOENT);
        assert_string_equal(hearth_error(), "there is no model 'missing'; there are: strict, hold");
        assert_int_equal(hearth_infer(h, "late", &in, 1, &out, &n), HEARTH_EIO);
        in.bytes = 4;
        assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_EINVAL);
        in.bytes = 8;
        in.dtype = HEARTH_I32;
        assert_int_equal(hearth_infer(h, "strict", &in, 1, &out, &n), HEARTH_EINVAL);
        in.dtype = HEARTH_F32;
    }
    assert_true(echo(h, 3, 1));
    assert_int_equal(mapped(), 2);
    hearth_close(h);
}

static void test_switched_off(void **state)
{
    server_rig *r = *state;
    serve(r);
    const hearth_options none[] = {{.no_ring = 1}, {.no_shared_memory = 1}};
    for (int i = 0; i < 2; i++) {
        hearth *h = connect_to(r, &none[i]);
        assert_true(echo(h, 3, 1) && echo(h, 3, 2) && echo(h, 3, 3));
        assert_int_equal(mapped(), 0);
        hearth_close(h);
    }
    static const char *const setting[][2] = {{"ring.clients", "0"}, {"ring.bytes", "64KiB"}};
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_setting_set(setting[i][0], setting[i][1]));
        hearth *h = connect_to(r, NULL);
        assert_true(echo(h, 3, 1) && echo(h, 3, 2) && echo(h, 3, 3));
        assert_int_equal(mapped(), 0); // refused, and nobody noticed
        hearth_close(h);
        hth_setting_reset();
    }
    assert_ok(hth_setting_set("ring.clients", "1"));
    hearth *a = connect_to(r, NULL), *b = connect_to(r, NULL);
    assert_true(echo(a, 3, 1) && echo(a, 3, 2) && echo(b, 3, 1) && echo(b, 3, 2));
    assert_int_equal(mapped(), 2); // the first one has the only ring
    hearth_close(a);
    hearth_close(b);
}

typedef struct caller {
    hearth *h;
    pthread_t thread;
    int id, bad;
} caller;

static void *call_many(void *arg)
{
    caller *c = arg;
    for (int i = 0; i < N_CALLS; i++) {
        c->bad += !echo(c->h, (size_t)(i * 7 % 900), (float)(c->id * 1000 + i));
    }
    return NULL;
}

static void test_threads(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *h = connect_to(r, NULL), *other = connect_to(r, NULL);
    caller c[N_CALLERS];
    for (int i = 0; i < N_CALLERS; i++) {
        c[i] = (caller){.h = i % 3 == 0 ? other : h, .id = i};
        assert_int_equal(pthread_create(&c[i].thread, NULL, call_many, &c[i]), 0);
    }
    for (int i = 0; i < N_CALLERS; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].bad, 0);
    }
    assert_int_equal(mapped(), 4);
    hearth_close(h);
    hearth_close(other);
}

static void test_timeout(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *h = connect_to(r, &(hearth_options){.timeout_ms = 3000});
    hearth *patient = connect_to(r, NULL);
    float x[1] = {1};
    hearth_tensor in = vector(x, 1), *out;
    int n;
    assert_true(echo(h, 3, 1) && echo(h, 3, 1));
    for (int i = 0; i < 2; i++) { // canceled over the socket, in the same channel again
        assert_int_equal(hearth_infer(h, "hold", &in, 1, &out, &n), HEARTH_ETIMEDOUT);
        wait_count(&fake_canceled, i + 1);
    }
    assert_true(echo(patient, 3, 7));
    hearth_status s = HEARTH_ETIMEDOUT;
    for (int i = 0; i < 100 && s == HEARTH_ETIMEDOUT; i++) { // however slow the machine is
        s = hearth_infer(h, "m", &in, 1, &out, &n);
    }
    assert_int_equal(s, HEARTH_OK);
    assert_memory_equal(out[0].data, x, 4); // its own answer, not one that came late
    hearth_tensors_free(out, n);
    hearth_close(patient);
    hearth_close(h);
}

static void test_restart(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *h = connect_to(r, NULL);
    assert_true(echo(h, 3, 1) && echo(h, 3, 1));
    assert_int_equal(mapped(), 2);
    hth_server_close(r->server);
    r->server = NULL;
    serve(r);
    bool good = false;
    for (int i = 0; i < 100 && !good; i++) {
        good = echo(h, 3, 1);
    }
    assert_true(good && echo(h, 4, 2) && echo(h, 5, 3));
    assert_int_equal(mapped(), 2); // a ring of the new connection
    hearth_close(h);
}

// ---- killed clients

static int victim(const char *url)
{
    hearth *h;
    float x[4] = {1, 2, 3, 4};
    hearth_tensor in = vector(x, 4), *out;
    int n;
    if (hearth_open(url, NULL, &h) != HEARTH_OK) {
        return 1;
    }
    for (int i = 0; i < 3; i++) {
        if (hearth_infer(h, "m", &in, 1, &out, &n) != HEARTH_OK) {
            return 1;
        }
        hearth_tensors_free(out, n);
    }
    return hearth_infer(h, "hold", &in, 1, &out, &n);
}

static void test_killed(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *h = connect_to(r, NULL);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            execl("/proc/self/exe", "rings_test", "victim", r->ipc, (char *)NULL);
            _exit(127);
        }
        wait_count(&fake_held, 1);
        assert_int_equal(mapped(), 1);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        uint64_t start = hth_now_ns();
        wait_count(&fake_canceled, i + 1);
        wait_mapped(0);
        print_message("a killed client's ring was gone after %.1f ms\n",
                      (double)(hth_now_ns() - start) / 1e6);
    }
    assert_true(echo(h, 3, 1));
    hearth_close(h);
}

// ---- clients that do not keep to the rules

static void raw_connect(raw *r, const char *url)
{
    *r = (raw){.url = url, .layout = {8192, 4096, 2}};
    assert_int_equal(nng_req0_open(&r->socket), 0);
    assert_int_equal(nng_socket_set_ms(r->socket, NNG_OPT_RECVTIMEO, 60000), 0);
    assert_int_equal(nng_dial(r->socket, url, NULL, 0), 0);
    r->bytes = hth_ring_layout_bytes(&r->layout);
}

static void raw_open_with(raw *r, const char *url, size_t request_bytes)
{
    int fd;
    void *p;
    raw_connect(r, url);
    r->layout.request_bytes = request_bytes;
    r->bytes = hth_ring_layout_bytes(&r->layout);
    assert_ok(hth_memfd_make("raw", r->bytes, &fd, &p));
    r->memory = p;
    assert_ok(raw_attach(r, fd, r->bytes));
    assert_int_equal(raw_attach(r, fd, r->bytes), HTH_EEXIST);
    hth_memfd_drop(fd, NULL, 0);
    assert_ok(hth_ring_open(r->memory, request_bytes, HTH_RING_PRODUCER, 0, &r->requests));
    assert_ok(hth_ring_open(r->memory + hth_ring_layout_channel(&r->layout, 1), 4096,
                            HTH_RING_CONSUMER, 0, &r->replies));
}

static void raw_open(raw *r, const char *url)
{
    raw_open_with(r, url, 8192);
}

static void raw_send(raw *r, const char *model, uint64_t call)
{
    _Alignas(64) uint8_t message[4096];
    size_t bytes = raw_message(1, model, call, message);
    assert_ok(hth_ring_send(r->requests, &(hth_ring_part){message, bytes}, 1, 20000000000u));
}

static void test_bad_attach(void **state)
{
    server_rig *r = *state;
    serve(r);
    raw a;
    raw_connect(&a, r->ipc);
    void *p;
    int fd, open_fd = memfd_create("open", MFD_CLOEXEC);
    assert_int_equal(ftruncate(open_fd, (off_t)a.bytes), 0);
    assert_ok(hth_memfd_make("raw", a.bytes, &fd, &p));
    assert_int_equal(raw_attach(&a, open_fd, a.bytes), HTH_EDENIED); // not sealed
    assert_int_equal(raw_attach(&a, 9999, a.bytes), HTH_ENOENT);
    assert_int_equal(raw_attach(&a, fd, a.bytes - 64), HTH_EINVAL);
    static const hth_ring_layout bad[] = {{8191, 4096, 2},       {8192, 4095, 2},
                                          {8192, 4096, 0},       {8192, 4096, 1025},
                                          {1ull << 40, 4096, 2}, {8192, 8192, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        raw b = a;
        b.layout = bad[i];
        uint64_t bytes = hth_ring_layout_bytes(&bad[i]);
        assert_int_equal(raw_attach(&b, fd, bytes > 0 ? bytes : a.bytes), HTH_EINVAL);
    }
    a.layout = (hth_ring_layout){1u << 30, 4096, 2};
    assert_int_equal(raw_attach(&a, fd, hth_ring_layout_bytes(&a.layout)), HTH_ETOOBIG);
    hth_memfd_drop(fd, p, a.bytes);
    hth_memfd_drop(open_fd, NULL, 0);
    nng_close(a.socket);
}

// ends_ring sends one message and checks that the ring ends, but neither the connection nor anybody
// else's.
static void ends_ring(server_rig *rig, hearth *other, const uint8_t *message, size_t bytes,
                      bool answered)
{
    raw a;
    uint64_t call;
    size_t n;
    raw_open(&a, rig->ipc);
    assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 0));
    if (answered) {
        assert_int_not_equal(raw_reply(&a, &call), HTH_OK);
        assert_int_equal(call, 0);
    }
    hth_err err = HTH_OK;
    while (err == HTH_OK) {
        err = hth_ring_wait(a.replies, 20000000000u);
        if (err == HTH_OK) {
            err = hth_ring_next(a.replies, &n);
        }
    }
    assert_int_equal(err, HTH_ECANCELED);
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Unmap body = HEARTH__UNMAP__INIT;
    body.region = 1;
    q.body_case = HEARTH__REQUEST__BODY_UNMAP;
    q.unmap = &body;
    assert_int_equal(raw_ask(a.socket, &q), HTH_ENOENT);
    raw_close(&a);
    assert_true(echo(other, 5, 1));
}

static void test_malformed(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *other = connect_to(r, NULL);
    _Alignas(64) uint8_t message[4096];
    hth_channel_head *head = (hth_channel_head *)(void *)message;
    hth_ipc_record *q = raw_record(message);
    assert_true(echo(other, 5, 1) && echo(other, 5, 1));
    size_t bytes = raw_message(1, "m", 9, message);
    ends_ring(r, other, message, bytes - 20, true); // its tensor lies outside
    ends_ring(r, other, message, sizeof *head + 8, true);
    ends_ring(r, other, message, sizeof *head, true);
    ends_ring(r, other, message, sizeof *head - 1, false);
    ends_ring(r, other, message, 0, false);
    q->tensor[0].at = q->bytes;
    ends_ring(r, other, message, bytes, true);
    raw_message(1, "m", 9, message);
    q->tensor[0].bytes = 60; // not what its shape makes
    ends_ring(r, other, message, bytes, true);
    raw_message(1, "m", 9, message);
    head->token_bytes = UINT32_MAX;
    ends_ring(r, other, message, bytes, true);
    head->token_bytes = (uint32_t)(bytes - sizeof *head); // and no record
    ends_ring(r, other, message, bytes, true);
    head->token_bytes = 0;
    head->channel = 2; // no such channel
    ends_ring(r, other, message, bytes, false);
    raw a;
    raw_open(&a, r->ipc);
    _Atomic uint64_t *tail = (_Atomic uint64_t *)a.memory;
    atomic_store(tail, 12345); // impossible; whoever looks at it ends the ring
    size_t n;
    hth_err err = HTH_OK;
    while (err == HTH_OK) {
        err = hth_ring_wait(a.replies, 20000000000u);
        if (err == HTH_OK) {
            err = hth_ring_next(a.replies, &n);
        }
    }
    assert_int_equal(err, HTH_ECANCELED);
    raw_close(&a);
    assert_true(echo(other, 5, 1));
    hearth_close(other);
}

// What only hearthd may say to its engine's process is refused in a client's record, and what it
// may not name, too.
static void test_other_requests(void **state)
{
    server_rig *r = *state;
    serve(r);
    raw a;
    _Alignas(64) uint8_t message[4096];
    hth_ipc_record *q = raw_record(message);
    uint64_t call;
    raw_open(&a, r->ipc);
    for (int i = 0; i < 5; i++) {
        size_t bytes = raw_message(1, "devices", 5, message);
        uint32_t word = q->text[HTH_IPC_RECORD_MODEL];
        q->text[HTH_IPC_RECORD_MODEL] = i == 0 ? 0 : word;
        q->text[HTH_IPC_RECORD_QUERY] = i <= 1 ? word : 0;
        q->text[HTH_IPC_RECORD_ARGUMENTS] = i == 2 ? word : 0;
        q->n_known = i == 3;
        q->tensor[0].region = i == 4 ? HTH_IPC_RECORD_SLAB : HTH_IPC_RECORD_HERE;
        assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 0));
        assert_int_equal(raw_reply(&a, &call), i < 4 ? HTH_ENOTSUP : HTH_EIO);
        assert_int_equal(call, 5);
    }
    size_t bytes = raw_message(1, "m", 6, message); // and goes on
    assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 0));
    assert_int_equal(raw_reply(&a, &call), HTH_OK);
    assert_int_equal(call, 6);
    raw_close(&a);
}

// A client of an earlier version asks for a ring with other messages, and goes on over the socket.
static void test_earlier_attach(void **state)
{
    // call 7, attach: bytes 18688, request_bytes 8192, channel_bytes 4096, 2 channels, handle 1
    static const uint8_t header[] = {0x08, 7,    0xA2, 1,    14,   0x10, 0x80, 0x92, 0x01, 0x18,
                                     0x80, 0x40, 0x20, 0x80, 0x20, 0x28, 2,    0x30, 1};
    server_rig *r = *state;
    serve(r);
    raw a;
    nng_msg *m;
    Hearth__Reply *reply;
    const uint8_t *section;
    uint64_t section_bytes;
    uint8_t frame[60] = {'H', 'T', 'H', '1', sizeof header};
    memcpy(frame + 8, header, sizeof header);
    raw_connect(&a, r->ipc);
    assert_int_equal(nng_msg_alloc(&m, 0), 0);
    assert_int_equal(nng_msg_append(m, frame, sizeof frame), 0);
    assert_int_equal(nng_sendmsg(a.socket, m, 0), 0);
    assert_int_equal(nng_recvmsg(a.socket, &m, 0), 0);
    assert_ok(hth_wire_read_reply(nng_msg_body(m), nng_msg_len(m), &hth_wire_default_limits, &reply,
                                  &section, &section_bytes));
    assert_int_equal(reply->body_case, HEARTH__REPLY__BODY_ERROR);
    assert_int_equal(reply->error->code, HTH_EINVAL);
    hth_wire_free_reply(reply);
    nng_msg_free(m);
    nng_close(a.socket);
}

static void test_never_reads(void **state)
{
    server_rig *r = *state;
    serve(r);
    hearth *other = connect_to(r, NULL);
    raw a;
    _Alignas(64) uint8_t message[4096];
    uint64_t call;
    int n_read = 0;
    raw_open(&a, r->ipc);
    for (uint64_t i = 1; i <= 1000; i++) { // its channel has room for some twenty answers
        size_t bytes = raw_message(1, "m", i, message);
        assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 20000000000u));
    }
    assert_true(echo(other, 5, 1) && echo(other, 5, 2));
    while (hth_ring_wait(a.replies, 0) == HTH_OK) {
        (void)raw_reply(&a, &call);
        assert_in_range(call, 1, 1000);
        n_read++;
    }
    assert_true(n_read > 0);
    // some of the others are kept, and given once
    int n_retained = 0;
    for (uint64_t i = 1; i <= 1000; i++) {
        n_retained += raw_fetch(&a, i) != HTH_ENOENT;
        assert_int_equal(raw_fetch(&a, i), HTH_ENOENT);
    }
    assert_in_range(n_retained, 1, 4);
    // too many at once are refused, in the channel
    int busy = 0;
    for (uint64_t i = 2001; i <= 2008; i++) {
        size_t bytes = raw_message(1, "hold", i, message);
        assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 20000000000u));
    }
    while (busy < 4) {
        busy += raw_reply(&a, &call) == HTH_EBUSY && call > 2000;
    }
    // .. and of one that would not be taken anyway that is what is said
    char said[256];
    hth_ipc_record *q = raw_record(message);
    size_t bytes = raw_message(1, "m", 3001, message);
    q->n_known = 1;
    assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 0));
    assert_int_equal(raw_reply_said(&a, &call, said), HTH_ENOTSUP);
    assert_int_equal(call, 3001);
    assert_string_equal(said, "a ring carries inferences only");
    raw_close(&a);
    wait_count(&fake_canceled, 1);
    assert_true(echo(other, 5, 3));
    hearth_close(other);
}

// wait_counted waits until no more than `most` bytes count.
static void wait_counted(uint64_t most)
{
    for (int i = 0; i < 120000 && hth_account_bytes() > most; i++) {
        fake_nap();
    }
    assert_true(hth_account_bytes() <= most);
}

// Answers that nobody fetches are charged to their client: where they are too many the next call is
// refused in its channel, and neither the ring nor the connection ends.
static void test_unfetched(void **state)
{
    enum { N = 100000, BYTES = N * sizeof(float) }; // of an answer: two are less than 1 MiB
    static const hth_err want[] = {HTH_OK, HTH_OK, HTH_EBUSY, HTH_OK};
    server_rig *r = *state;
    raw a;
    uint64_t call;
    _Alignas(64) uint8_t message[4096];
    hth_ipc_record *q = raw_record(message);
    serve(r);
    assert_ok(hth_setting_set("limits.bytes_per_peer", "1MiB"));
    raw_open(&a, r->ipc);
    uint32_t region = raw_share(&a, BYTES);
    for (uint64_t i = 0; i < 4; i++) {
        if (want[i] == HTH_OK && i > 1) { // there is room again
            assert_ok(raw_fetch(&a, 1));
            wait_counted(BYTES + BYTES / 2);
        }
        size_t bytes = raw_message(1, "m", i + 1, message);
        q->tensor[0].region = region;
        q->tensor[0].at = 0;
        q->tensor[0].dim[0] = N;
        q->tensor[0].bytes = BYTES;
        assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 0));
        assert_int_equal(raw_reply(&a, &call), want[i]);
        assert_int_equal(call, i + 1);
    }
    raw_close(&a);
    wait_mapped(0);
    wait_counted(0);
}

// Inputs that are copied out of shared memory are charged to their client, not to all.
static void test_copied(void **state)
{
    enum { N = 80000, BYTES = N * sizeof(int64_t) }; // of a request: two are more than 1 MiB
    server_rig *r = *state;
    raw a;
    uint64_t call;
    _Alignas(64) uint8_t message[4096];
    hth_ipc_record *q = raw_record(message);
    serve(r);
    assert_ok(hth_setting_set("limits.bytes_per_peer", "1MiB"));
    raw_open(&a, r->ipc);
    uint32_t region = raw_share(&a, BYTES);
    for (uint64_t i = 1; i <= 3; i++) {
        size_t bytes = raw_message(1, i == 1 ? "hold" : "m", i, message);
        q->tensor[0].region = region;
        q->tensor[0].at = 0;
        q->tensor[0].dtype = HEARTH_I64;
        q->tensor[0].dim[0] = N;
        q->tensor[0].bytes = BYTES;
        assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, bytes}, 1, 0));
        if (i == 1) {
            wait_count(&fake_held, 1);
        } else if (i == 2) { // there is no room while the first one is held
            assert_int_equal(raw_reply(&a, &call), HTH_EBUSY);
            assert_int_equal(call, 2);
            assert_ok(hth_setting_set("limits.bytes_per_peer", "8MiB"));
            atomic_store(&fake_released, 1);
            assert_ok(raw_reply(&a, &call));
            assert_int_equal(call, 1);
        } else {
            assert_ok(raw_reply(&a, &call));
            assert_int_equal(call, 3);
        }
    }
    raw_close(&a);
    wait_mapped(0);
    wait_counted(0);
}

// Cancellations are answered while a ring is being served, and find what is in it all the same:
// what was sent before, and nothing that comes after.
static void test_cancel_unserved(void **state)
{
    server_rig *r = *state;
    raw a;
    uint64_t call;
    serve(r);
    raw_open(&a, r->ipc);
    assert_ok(raw_cancel(&a, 1)); // of nothing
    assert_ok(raw_cancel(&a, 51));
    raw_send(&a, "hold", 1);
    wait_count(&fake_held, 1); // so the engine looks nowhere
    atomic_store(&fake_hold_bytes, 1);
    raw_send(&a, "hold", 2);
    wait_count(&fake_held, 2); // it is being taken
    raw_send(&a, "hold", 3);
    for (uint64_t i = 3; i > 0; i--) {
        assert_ok(raw_cancel(&a, i));
    }
    assert_ok(raw_cancel(&a, 50)); // of what comes later
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(raw_reply(&a, &call), HTH_ECANCELED);
        assert_int_equal(call, i);
        atomic_store(&fake_released, 1);
    }
    for (uint64_t i = 50; i <= 51; i++) {
        raw_send(&a, "m", i);
        assert_ok(raw_reply(&a, &call));
        assert_int_equal(call, i);
    }
    raw_close(&a);
}

// More cancellations than calls could be: the ring goes on.
static void test_cancel_many(void **state)
{
    server_rig *r = *state;
    raw a;
    uint64_t call;
    serve(r);
    raw_open(&a, r->ipc);
    raw_send(&a, "hold", 1);
    wait_count(&fake_held, 1);
    atomic_store(&fake_hold_bytes, 1);
    raw_send(&a, "hold", 2);
    wait_count(&fake_held, 2);
    for (uint64_t i = 100; i < 200; i++) {
        assert_ok(raw_cancel(&a, i));
    }
    assert_ok(raw_cancel(&a, 1));
    assert_int_equal(raw_reply(&a, &call), HTH_ECANCELED);
    atomic_store(&fake_released, 1);
    assert_ok(raw_reply(&a, &call)); // forgotten
    assert_int_equal(call, 2);
    raw_send(&a, "m", 100);
    assert_ok(raw_reply(&a, &call));
    assert_int_equal(call, 100);
    raw_close(&a);
}

// What is large is not taken in a look into all rings, during which the loop cannot ask for any.
static void test_large_look(void **state)
{
    enum { FLOATS = (8 << 20) / sizeof(float), POLLED = 2 };
    static const char *const text[HTH_IPC_RECORD_TEXTS] = {[HTH_IPC_RECORD_MODEL] = "missing"};
    const hth_channel_head head = {.call = 1, .channel = 1};
    server_rig *r = *state;
    raw a;
    uint64_t call;
    fake_spin_ns = 600000000000u; // the engine looks all the time
    serve(r);
    raw_open_with(&a, r->ipc, 16 << 20);
    uint8_t *message = hth_alloc_aligned(sizeof head + 4096 + FLOATS * sizeof(float), 64);
    memcpy(message, &head, sizeof head);
    hth_ipc_record *q = raw_record(message);
    hth_ipc_record_begin(q, text, 1);
    hth_ipc_record_add(q, "x", HEARTH_F32, 1, (const int64_t[]){FLOATS}, FLOATS * sizeof(float));
    assert_ok(hth_ipc_record_end(q));
    memset((uint8_t *)q + q->tensor[0].at, 0, FLOATS * sizeof(float));
    const _Atomic uint32_t *hungry = (const void *)(a.memory + 128);
    for (int i = 0; i < 120000 && atomic_load(hungry) != POLLED; i++) {
        fake_nap();
    }
    assert_int_equal(atomic_load(hungry), POLLED);
    atomic_store(&fake_hold_bytes, FLOATS * sizeof(float));
    assert_ok(hth_ring_send(a.requests, &(hth_ring_part){message, sizeof head + q->bytes}, 1, 0));
    wait_count(&fake_held, 1); // memory for it is waited for
    assert_ok(raw_cancel(&a, 99));
    atomic_store(&fake_released, 1);
    assert_int_equal(raw_reply(&a, &call), HTH_ENOENT);
    assert_int_equal(call, 1);
    raw_close(&a);
    hth_free(message);
}

// A request that comes while too much is held is refused, and its client's ring goes on.
static void test_full(void **state)
{
    enum { N = 40000 }; // 160 KB, in the ring
    server_rig *r = *state;
    float *x = hth_calloc(N, sizeof *x);
    hearth_tensor in = vector(x, N), *out;
    int n;
    serve(r);
    hearth *h = connect_to(r, NULL);
    assert_true(echo(h, N, 1) && echo(h, N, 2));
    hth_account_add((uint64_t)64 << 30); // of others
    assert_int_equal(hearth_infer(h, "m", &in, 1, &out, &n), HEARTH_EBUSY);
    assert_non_null(strstr(hearth_error(), "http.buffered_bytes"));
    hth_account_give((uint64_t)64 << 30);
    assert_int_equal(mapped(), 2);
    assert_true(echo(h, N, 3));
    hearth_close(h);
    hth_free(x);
    wait_mapped(0);
    wait_counted(0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "victim") == 0) {
        return victim(argv[2]);
    }
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_sizes),           T(test_errors),         T(test_switched_off),
        T(test_threads),         T(test_timeout),        T(test_restart),
        T(test_killed),          T(test_bad_attach),     T(test_malformed),
        T(test_other_requests),  T(test_earlier_attach), T(test_never_reads),
        T(test_unfetched),       T(test_copied),         T(test_full),
        T(test_cancel_unserved), T(test_cancel_many),    T(test_large_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
