// SPDX-License-Identifier: Apache-2.0
// Peers of the socket protocol that take their time, in every state that a connection can be in, on
// an injected clock.
#include "tests/rig/rpc_rig.h"

// Silence and halves, in every state before a request is whole: each is ended by its own clock,
// and who asks now and then stays.
static void silences(fixture *f, bool local)
{
    uint8_t *m;
    peer honest = greeted(f, local, 1);
    assert_ok(ask(honest, TOKEN));
    size_t n = message(honest, TOKEN, NULL, "x", 100000, &m), head = local ? 9 : 8;
    peer silent = dial(f, local, 1, 0), half_hello = dial(f, local, 1, 0);
    say(half_hello, "\0SP", 3);
    peer no_token = greeted(f, local, 1);
    peer cut[5]; // in the length, after it, before the words end, in the body, near its end
    const size_t at[5] = {3, head, head + 2, 50000, n - 1};
    for (int i = 0; i < 5; i++) {
        cut[i] = greeted(f, local, 1);
        assert_ok(ask(cut[i], TOKEN));
        say(cut[i], m, at[i]);
    }
    peer skipped = greeted(f, local, 1); // a message that is refused, and not all there
    assert_ok(ask(skipped, TOKEN));
    uint8_t large[100] = {local};
    large[head - 6] = 1; // 2^40 bytes
    large[head] = 0x80;
    say(skipped, large, sizeof large);
    assert_int_equal(answer(skipped), HTH_ETOOBIG);
    step(f, local, 6); // limits.handshake_seconds
    ended(silent);
    ended(half_hello);
    step(f, local, 6); // limits.token_seconds
    if (local) {
        assert_ok(ask(no_token, "")); // root needs none
        close(no_token.fd);
    } else {
        ended(no_token);
    }
    assert_ok(ask(honest, TOKEN));
    step(f, local, 12); // http.request_seconds
    for (int i = 0; i < 5; i++) {
        ended(cut[i]);
    }
    ended(skipped);
    assert_ok(ask(honest, TOKEN));
    close(honest.fd);
    hth_free(m);
}

static void test_silences(void **state)
{
    start(*state, true, "tcp");
    silences(*state, false);
    silences(*state, true);
}

// A message in small parts: at http.min_request_rate it may take as long as it likes, at less not.
static void drips(fixture *f, bool local)
{
    uint8_t *m;
    peer good = greeted(f, local, 1), slow = greeted(f, local, 1);
    assert_ok(ask(good, TOKEN));
    assert_ok(ask(slow, TOKEN));
    size_t n = message(good, TOKEN, NULL, "x", 10000, &m), part = n / 4;
    for (size_t i = 0; i < 4; i++) { // 48 s, 833 and 4 bytes a second
        say(good, m + i * part, part);
        if (send(slow.fd, m + 50 * i, 50, MSG_NOSIGNAL) != 50) {
            assert_true(i > 1); // it was ended
        }
        step(f, local, 12);
    }
    ended(slow);
    say(good, m + 4 * part, n - 4 * part);
    assert_ok(answer(good));
    close(good.fd);
    hth_free(m);
}

static void test_drips(void **state)
{
    start(*state, true, "tcp");
    drips(*state, false);
    drips(*state, true);
}

// ---- what goes

// An answer that nobody reads, and one that is read slowly, but fast enough.
static void readers(fixture *f, bool local)
{
    static char part[1 << 18];
    peer none = dial(f, local, 1, SMALL_BUF), slow = dial(f, local, 1, SMALL_BUF);
    greet(none);
    greet(slow);
    request(slow, TOKEN, NULL, "x", 2 * MEBIBYTE); // 8 MiB, more than the kernel takes
    request(none, TOKEN, NULL, "x", 2 * MEBIBYTE);
    hear(none, part, 1); // it has begun
    hear(slow, part, 1);
    // 833 bytes a second; of a Unix socket as much as its buffer holds, which is given back by
    // halves
    size_t some = local ? 250000 : 10000, left = 2 * MEBIBYTE * sizeof(float) - 4 * some;
    for (int i = 0; i < 4; i++) {
        hear(slow, part, some);
        step(f, local, 12);
    }
    ended(none);
    while (left > 0) {
        ssize_t n = recv(slow.fd, part, left < sizeof part ? left : sizeof part, 0);
        assert_true(n > 0);
        left -= (size_t)n;
    }
    close(slow.fd);
}

static void test_readers(void **state)
{
    start(*state, true, "tcp");
    readers(*state, false);
    readers(*state, true);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {T(test_silences), T(test_drips), T(test_readers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
