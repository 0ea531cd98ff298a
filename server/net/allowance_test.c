// SPDX-License-Identifier: Apache-2.0
// What one peer may use of what all have: connections, places for events, requests, bytes.
#include "base/test.h"

#include "base/settings.h"
#include "server/net/account.h"
#include "server/net/allowance.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define MEBIBYTE ((uint64_t)1 << 20)

static hth_allowances *table;
static hth_allowance *held[4096];
static int n_held;

static int setup(void **state)
{
    hth_setting_reset();
    assert_ok(hth_setting_set("limits.connections", "64"));
    assert_ok(hth_setting_set("limits.connections_per_address", "40"));
    assert_ok(hth_allowances_open(&table));
    return 0;
}

static int teardown(void **state)
{
    assert_int_equal(n_held, 0);
    hth_allowances_close(table);
    hth_setting_reset();
    return 0;
}

static hth_allowance_key address(const char *text)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, text, &four.sin_addr) == 1) {
        return hth_allowance_key_address((const struct sockaddr *)&four);
    }
    assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
    return hth_allowance_key_address((const struct sockaddr *)&six);
}

// join takes connections until there are no more; returns how many.
static int join(hth_allowance_key key)
{
    int before = n_held;
    while (hth_allowance_join(table, &key, false, &held[n_held]) == HTH_OK) {
        n_held++;
    }
    return n_held - before;
}

static void leave_all(void)
{
    while (n_held > 0) {
        hth_allowance *q = held[--n_held];
        hth_allowance_leave(q, false);
        hth_allowance_rele(q);
    }
}

static void test_connections(void **state)
{
    assert_int_equal(join(address("192.0.2.1")), 40);
    assert_int_equal(join(address("::ffff:192.0.2.1")), 0); // the same peer
    assert_non_null(strstr(hth_err_detail(), "limits.connections_per_address"));
    assert_int_equal(join(address("2001:db8::1")), 8);      // the last quarter is for others
    assert_int_equal(join(address("2001:db8::ffff:2")), 0); // of the same network
    assert_int_equal(join(address("2001:db8:0:1::1")), 2);
    assert_int_equal(join(address("192.0.2.2")), 2);
    assert_false(hth_allowance_full(table, false));
    assert_int_equal(join(hth_allowance_key_user(1000)), 40); // counted apart
    leave_all();
}

// A user's connections may be of both kinds: the group decides, too (auth.local). None is left
// counted, whichever comes first and whichever goes first.
static void test_trusted(void **state)
{
    hth_allowance_key key = hth_allowance_key_user(1000);
    assert_ok(hth_setting_set("limits.connections", "1"));
    for (int i = 0; i < 4; i++) {
        bool comes = i % 2 != 0, goes = i / 2 != 0; // the kind that is first, trusted or not
        hth_allowance *of[2];                       // by kind
        assert_ok(hth_allowance_join(table, &key, comes, &of[comes]));
        assert_ok(hth_allowance_join(table, &key, !comes, &of[!comes]));
        hth_allowance_leave(of[goes], goes);
        hth_allowance_leave(of[!goes], !goes);
        hth_allowance_rele(of[0]);
        hth_allowance_rele(of[1]);
        assert_false(hth_allowance_full(table, true));
        assert_ok(hth_allowance_join(table, &key, false, &of[0]));
        assert_true(hth_allowance_full(table, true));
        hth_allowance_leave(of[0], false);
        hth_allowance_rele(of[0]);
    }
}

static void test_requests(void **state)
{
    assert_ok(hth_setting_set("limits.requests_per_peer", "3"));
    assert_ok(hth_setting_set("limits.long_requests", "4"));
    hth_allowance_key one = address("192.0.2.1"), two = address("192.0.2.2");
    assert_ok(hth_allowance_join(table, &one, false, &held[n_held++]));
    assert_ok(hth_allowance_join(table, &one, false, &held[n_held++]));
    assert_ok(hth_allowance_join(table, &two, false, &held[n_held++]));
    assert_ptr_equal(held[0], held[1]);
    for (int i = 0; i < 3; i++) {
        assert_ok(hth_allowance_request(held[i % 2], HTH_ALLOWANCE_SHORT));
    }
    assert_err(hth_allowance_request(held[1], HTH_ALLOWANCE_SHORT), HTH_EBUSY,
               "limits.requests_per_peer");
    assert_ok(hth_allowance_request(held[2], HTH_ALLOWANCE_SHORT));
    assert_ok(hth_allowance_request(held[0], HTH_ALLOWANCE_LONG));
    assert_ok(hth_allowance_request(held[0], HTH_ALLOWANCE_LONG));
    assert_err(hth_allowance_request(held[0], HTH_ALLOWANCE_LONG), HTH_EBUSY,
               "half of limits.long_requests");
    assert_ok(hth_setting_set("limits.watches", "5"));
    assert_ok(hth_allowance_request(held[0], HTH_ALLOWANCE_WATCH));
    assert_ok(hth_allowance_request(held[1], HTH_ALLOWANCE_WATCH));
    assert_err(hth_allowance_request(held[0], HTH_ALLOWANCE_WATCH), HTH_EBUSY,
               "a quarter of limits.watches");
    hth_allowance_answered(held[0], HTH_ALLOWANCE_SHORT);
    assert_ok(hth_allowance_request(held[1], HTH_ALLOWANCE_SHORT));
    leave_all();
}

static void test_bytes(void **state)
{
    assert_ok(hth_setting_set("limits.bytes_per_peer", "1MiB"));
    assert_ok(hth_setting_set("http.buffered_bytes", "2MiB"));
    uint64_t before = hth_account_bytes();
    hth_allowance_key key[3] = {address("192.0.2.1"), address("192.0.2.2"), address("192.0.2.3")};
    for (int i = 0; i < 3; i++) {
        assert_ok(hth_allowance_join(table, &key[i], false, &held[n_held++]));
    }
    assert_ok(hth_allowance_take(held[0], MEBIBYTE));
    assert_err(hth_allowance_take(held[0], 1), HTH_EBUSY, "limits.bytes_per_peer");
    assert_err(hth_allowance_take(held[1], UINT64_MAX), HTH_EBUSY, "limits.bytes_per_peer");
    assert_ok(hth_allowance_take(held[1], MEBIBYTE));
    assert_err(hth_allowance_take(held[2], 1), HTH_EBUSY, "http.buffered_bytes"); // in all
    hth_allowance_give(held[0], MEBIBYTE);
    assert_ok(hth_allowance_take(held[2], 1));
    hth_allowance_give(held[2], 1);
    hth_allowance_give(held[1], MEBIBYTE);
    assert_int_equal(hth_account_bytes(), before);
    leave_all();
}

// Handshakes of a peer count for a second.
static void test_handshakes(void **state)
{
    hth_allowance_key key = address("192.0.2.1");
    assert_ok(hth_allowance_join(table, &key, false, &held[n_held++]));
    assert_int_equal(hth_allowance_shakes(held[0], 7), 0);
    hth_allowance_shook(held[0], 7);
    hth_allowance_shook(held[0], 7);
    assert_int_equal(hth_allowance_shakes(held[0], 7), 2);
    assert_int_equal(hth_allowance_shakes(held[0], 8), 0);
    hth_allowance_shook(held[0], 8);
    assert_int_equal(hth_allowance_shakes(held[0], 8), 1);
    leave_all();
}

static void test_out_of_memory(void **state)
{
    hth_allowance_key key = address("192.0.2.1");
    FAULT_LOOP(hth_allowance_join(table, &key, false, &held[n_held]));
    n_held++;
    leave_all();
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_connections), T(test_trusted),    T(test_requests),
        T(test_bytes),       T(test_handshakes), T(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
