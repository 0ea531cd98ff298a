// SPDX-License-Identifier: Apache-2.0
// TLS of the socket protocol with peers that do not get on with it: silence, halves, garbage, and
// attempts at another handshake. Nobody else notices, and nothing stays.
#include "tests/rig/certify.h"
#include "tests/rig/rpc_rig.h"

#include "server/net/accept_guard.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#define HALVES 64

static int setup_tls(void **state)
{
    char cert[128], key[128];
    setup(state);
    const fixture *f = *state;
    snprintf(cert, sizeof cert, "%s/cert", f->rig.dir);
    snprintf(key, sizeof key, "%s/key", f->rig.dir);
    certify(cert, key);
    assert_ok(hth_setting_set("tls.cert", cert));
    assert_ok(hth_setting_set("tls.key", key));
    start(*state, true, "tls+tcp");
    return 0;
}

// ---- a client

typedef struct secure {
    peer p;
    SSL_CTX *context;
    SSL *ssl;
} secure;

static secure secure_dial(const fixture *f, int version)
{
    secure s = {.p = dial(f, false, 1, 0), .context = SSL_CTX_new(TLS_client_method())};
    assert_int_equal(SSL_CTX_set_max_proto_version(s.context, version), 1);
    s.ssl = SSL_new(s.context);
    assert_int_equal(SSL_set_fd(s.ssl, s.p.fd), 1);
    SSL_set_connect_state(s.ssl);
    return s;
}

static void secure_hear(secure *s, uint8_t *bytes, size_t n)
{
    for (int got; n > 0; n -= (size_t)got, bytes += got) {
        got = SSL_read(s->ssl, bytes, (int)n);
        assert_true(got > 0);
    }
}

static void secure_greet(secure *s)
{
    uint8_t hello[8];
    assert_int_equal(SSL_do_handshake(s->ssl), 1);
    assert_int_equal(SSL_write(s->ssl, "\0SP\0\0\x30\0\0", 8), 8);
    secure_hear(s, hello, 8);
    assert_memory_equal(hello, "\0SP\0\0\x31\0\0", 8);
}

// secure_ask asks byte by byte, a record each.
static void secure_ask(secure *s, bool bytes)
{
    uint8_t *m, head[8];
    uint64_t size = 0;
    size_t n = message(s->p, TOKEN, "devices", NULL, 0, &m), part = bytes ? 1 : n;
    for (size_t i = 0; i < n; i += part) {
        assert_int_equal(SSL_write(s->ssl, m + i, (int)part), part);
    }
    hth_free(m);
    secure_hear(s, head, 8);
    for (int i = 0; i < 8; i++) {
        size = size << 8 | head[i];
    }
    uint8_t *answer = hth_alloc(size);
    secure_hear(s, answer, size);
    hth_free(answer);
}

static void secure_end(secure *s)
{
    SSL_free(s->ssl);
    SSL_CTX_free(s->context);
    close(s->p.fd);
    ERR_clear_error();
}

// hello makes what a client says first.
static size_t hello(uint8_t *out, size_t most)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(ssl);
    assert_int_equal(SSL_do_handshake(ssl), -1);
    int n = BIO_read(SSL_get_wbio(ssl), out, (int)most);
    assert_true(n > 100);
    SSL_free(ssl);
    SSL_CTX_free(context);
    ERR_clear_error();
    return (size_t)n;
}

static void wait_none(void)
{
    for (int i = 0; i < PATIENCE && hth_accept_count() > 0; i++) {
        fake_nap();
    }
    assert_int_equal(hth_accept_count(), 0);
}

// ---- tests

// Handshakes that do not begin, stop half-way, or are none: ended by the clock, or at once.
static void test_halves(void **state)
{
    fixture *f = *state;
    uint8_t first[4096], record[4096] = {0x16, 3, 1, 0x0f, 0xfb};
    size_t n = hello(first, sizeof first);
    peer half[HALVES];
    secure honest = secure_dial(f, TLS1_3_VERSION);
    secure_greet(&honest);
    for (int i = 0; i < HALVES; i++) { // up to the whole first message, whose answer is not taken
        half[i] = dial(f, false, 1, 0);
        say(half[i], first, n * (size_t)i / (HALVES - 1));
    }
    const struct {
        const void *bytes;
        size_t n;
    } bad[] = {{"GET / HTTP/1.1\r\n\r\n", 18}, {record, sizeof record}, {"\x17\3\3\0\1x", 6}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        peer p = dial(f, false, 1, 0);
        say(p, bad[i].bytes, bad[i].n);
        ended(p);
    }
    secure_ask(&honest, true);
    secure late = secure_dial(f, TLS1_2_VERSION); // after them all
    secure_greet(&late);
    atomic_fetch_add(&f->ns, 6 * (uint64_t)1000000000u); // limits.handshake_seconds
    for (int i = 0; i < HALVES; i++) {
        ended(half[i]);
    }
    secure_ask(&honest, false);
    secure_ask(&late, false);
    secure_end(&honest);
    secure_end(&late);
    wait_none();
}

// A client of TLS 1.2 that begins another handshake, again and again, gets none; others are served.
static void test_renegotiation(void **state)
{
    fixture *f = *state;
    secure honest = secure_dial(f, TLS1_3_VERSION);
    secure_greet(&honest);
    for (int i = 0; i < 20; i++) {
        secure again = secure_dial(f, TLS1_2_VERSION);
        secure_greet(&again);
        SSL_CTX_set_options(again.context, SSL_OP_ALLOW_CLIENT_RENEGOTIATION);
        assert_int_equal(SSL_renegotiate(again.ssl), 1);
        assert_int_not_equal(SSL_do_handshake(again.ssl), 1);
        secure_end(&again);
    }
    secure_ask(&honest, false);
    secure_end(&honest);
    wait_none();
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup_tls, teardown)
    const struct CMUnitTest tests[] = {T(test_halves), T(test_renegotiation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
