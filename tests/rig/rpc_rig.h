// SPDX-License-Identifier: Apache-2.0
// tests/rig/rpc_rig.h - a server with the fake engine that listens on ipc:// and another url, and
// peers that speak the socket protocol themselves, byte by byte. Included by one .c of a test
// program.
#ifndef HTH_TESTS_RIG_RPC_RIG_H
#define HTH_TESTS_RIG_RPC_RIG_H

#include "tests/rig/server_rig.h"

#include "base/clock.h"
#include "base/settings.h"
#include "client/wire.h"
#include "tests/rig/fake_engine.h"
#include "tests/rig/free_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE 20000 // milliseconds until what must come has come
#define TOKEN    "secret"
// Its hash.
#define SECRET    "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
#define MEBIBYTE  ((size_t)1 << 20)
#define SMALL_BUF 4096

typedef struct fixture {
    server_rig rig;
    int port;
    _Atomic uint64_t ns; // the clock
    // Who stops the server waits by the clock: each LOOKS times that it has looked, the next of
    // these passes. 0: none does any more.
    _Atomic bool stopping;
    pthread_t stops;
    int looks;
    uint64_t passes_ns[3];
} fixture;

#define LOOKS 20

static inline uint64_t clock_ns(void *ctx)
{
    fixture *f = ctx;
    if (f->stopping && pthread_equal(pthread_self(), f->stops) && ++f->looks % LOOKS == 0) {
        atomic_fetch_add(&f->ns, f->passes_ns[0]);
        memmove(f->passes_ns, f->passes_ns + 1, sizeof f->passes_ns - sizeof *f->passes_ns);
    }
    return atomic_load(&f->ns);
}

static inline void start(fixture *f, bool tokens, const char *scheme)
{
    char file[128], url[64];
    f->port = free_port(2);
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", scheme, f->port);
    snprintf(file, sizeof file, "%s/tokens", f->rig.dir);
    int fd = open(file, O_CREAT | O_WRONLY, 0600);
    const char line[] = "a admin " SECRET "\n";
    assert_int_equal(write(fd, line, sizeof line - 1), sizeof line - 1);
    close(fd);
    assert_ok(hth_setting_set("auth.tokens_file", tokens ? file : ""));
    const char *urls[] = {f->rig.ipc, url};
    hth_server_config config = {.store = f->rig.store, .listen = urls, .n_listen = 2};
    assert_ok(hth_server_open(&config, &f->rig.server));
    assert_int_equal(chmod(f->rig.dir, 0755), 0);
    assert_int_equal(chmod(f->rig.ipc + 6, 0777), 0);
}

static inline int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    server_rig_make(&f->rig);
    hth_setting_reset();
    atomic_store(&f->ns, 1000 * (uint64_t)1000000000u);
    hth_clock_inject(clock_ns, f);
    atomic_store(&fake_released, 0);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture *f = *state;
    atomic_store(&fake_released, 1);
    server_rig_end(&f->rig);
    hth_clock_inject(NULL, NULL);
    hth_setting_reset();
    hth_free(f);
    return 0;
}

// ---- peers

typedef struct peer {
    int fd;
    bool local;
} peer;

// dial connects, over tcp from 127.0.0.`from`.
static inline peer dial(const fixture *f, bool local, int from, int buffer)
{
    peer p = {socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), local};
    const struct timeval patience = {.tv_sec = PATIENCE / 1000};
    setsockopt(p.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(p.fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (buffer > 0) {
        setsockopt(p.fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    }
    if (local) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        snprintf(a.sun_path, sizeof a.sun_path, "%s", f->rig.ipc + 6);
        assert_int_equal(connect(p.fd, (struct sockaddr *)&a, sizeof a), 0);
        return p;
    }
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK + (unsigned)from - 1)};
    assert_int_equal(bind(p.fd, (struct sockaddr *)&a, sizeof a), 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons((uint16_t)f->port);
    assert_int_equal(connect(p.fd, (struct sockaddr *)&a, sizeof a), 0);
    return p;
}

static inline void say(peer p, const void *bytes, size_t n)
{
    assert_int_equal(send(p.fd, bytes, n, MSG_NOSIGNAL), n);
}

static inline void hear(peer p, void *bytes, size_t n)
{
    assert_int_equal(recv(p.fd, bytes, n, MSG_WAITALL), n);
}

static inline void greet(peer p)
{
    char hello[8];
    say(p, "\0SP\0\0\x30\0\0", 8);
    hear(p, hello, 8);
    assert_memory_equal(hello, "\0SP\0\0\x31\0\0", 8);
}

static inline peer greeted(const fixture *f, bool local, int from)
{
    peer p = dial(f, local, from, 0);
    greet(p);
    return p;
}

// ended waits for the end of a connection, and closes it.
static inline void ended(peer p)
{
    static char rest[1 << 16];
    ssize_t n;
    do {
        n = recv(p.fd, rest, sizeof rest, 0);
    } while (n > 0);
    if (n < 0 && errno != ECONNRESET) {
        fail_msg("it is not ended: %s", strerror(errno));
    }
    close(p.fd);
}

// framed makes a request with everything in front of it that its transport wants; returns its
// bytes. The n tensors get zeros.
static inline size_t framed(peer p, const Hearth__Request *request, Hearth__Tensor *const *t,
                            size_t n, uint8_t **out)
{
    nng_msg *m;
    uint8_t *data;
    assert_ok(hth_wire_message(&request->base, t, n, 0, &hth_wire_default_limits, &m, &data));
    for (size_t i = 0; i < n; i++) {
        memset(data + t[i]->offset, 0, t[i]->bytes);
    }
    size_t head = p.local ? 9 : 8, bytes = nng_msg_len(m) + 4;
    *out = hth_calloc(1, head + bytes);
    (*out)[0] = p.local;
    for (int i = 0; i < 8; i++) {
        (*out)[head - 8 + (size_t)i] = (uint8_t)((uint64_t)bytes >> (8 * (7 - i)));
    }
    (*out)[head] = 0x80;
    memcpy(*out + head + 4, nng_msg_body(m), nng_msg_len(m));
    nng_msg_free(m);
    return head + bytes;
}

// message makes such a request: model NULL: the query `what`; else an inference of n floats.
static inline size_t message(peer p, const char *token, const char *what, const char *model,
                             size_t n, uint8_t **out)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Query query = HEARTH__QUERY__INIT;
    Hearth__Infer infer = HEARTH__INFER__INIT;
    Hearth__Tensor t = HEARTH__TENSOR__INIT, *list[] = {&t};
    int64_t shape[] = {(int64_t)n};
    q.call = 7;
    q.token = (char *)token;
    query.what = (char *)what;
    query.arguments = "{}";
    infer.model = (char *)model;
    infer.inputs = list;
    infer.n_inputs = 1;
    t.name = "x";
    t.dtype = HTH_DT_F32;
    t.shape = shape;
    t.n_shape = 1;
    t.bytes = n * sizeof(float);
    q.body_case = model == NULL ? HEARTH__REQUEST__BODY_QUERY : HEARTH__REQUEST__BODY_INFER;
    if (model == NULL) {
        q.query = &query;
    } else {
        q.infer = &infer;
    }
    return framed(p, &q, list, model != NULL, out);
}

static inline void request(peer p, const char *token, const char *what, const char *model, size_t n)
{
    uint8_t *m;
    size_t bytes = message(p, token, what, model, n, &m);
    say(p, m, bytes);
    hth_free(m);
}

// answer_region returns the error of an answer, HTH_OK: there is none; *region: the one it names.
static inline hth_err answer_region(peer p, uint32_t *region)
{
    uint8_t head[9];
    uint64_t bytes = 0;
    Hearth__Reply *r;
    const uint8_t *section;
    uint64_t section_bytes;
    hear(p, head, p.local ? 9 : 8);
    for (int i = 0; i < 8; i++) {
        bytes = bytes << 8 | head[i + p.local];
    }
    uint8_t *m = hth_alloc_aligned(bytes, 64);
    hear(p, m, bytes);
    assert_ok(hth_wire_read_reply(m + 4, bytes - 4, &hth_wire_default_limits, &r, &section,
                                  &section_bytes));
    hth_err err = r->body_case == HEARTH__REPLY__BODY_ERROR ? (hth_err)r->error->code : HTH_OK;
    *region = r->body_case == HEARTH__REPLY__BODY_MAPPED ? r->mapped->region : 0;
    hth_wire_free_reply(r);
    hth_free(m);
    return err;
}

static inline hth_err answer(peer p)
{
    uint32_t region;
    return answer_region(p, &region);
}

static inline hth_err ask(peer p, const char *token)
{
    request(p, token, "devices", NULL, 0);
    return answer(p);
}

static inline void wait_for(atomic_int *what, int want)
{
    for (int i = 0; i < PATIENCE && atomic_load(what) != want; i++) {
        fake_nap();
    }
    assert_int_equal(atomic_load(what), want);
}

// settled returns when the server has read what was sent to it before, and accepted who came
// before.
static inline void settled(fixture *f, bool local)
{
    peer p = greeted(f, local, 98);
    assert_ok(ask(p, TOKEN));
    close(p.fd);
}

// step moves the clock by some seconds, more than limits.handshake_seconds, and returns when the
// server has checked at its connections then: a new one that says nothing is ended.
static inline void step(fixture *f, bool local, int seconds)
{
    peer silent = dial(f, local, 99, 0);
    settled(f, local);
    atomic_fetch_add(&f->ns, (uint64_t)seconds * 1000000000u);
    ended(silent);
}

#endif
