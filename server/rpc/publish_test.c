// SPDX-License-Identifier: Apache-2.0
// Events from a server's publisher to clients: by topic, on every transport, and without anybody
// waiting for who does not read.
#include "server/rpc/publish.h"

#include "base/clock.h"
#include "base/test.h"
#include "client/events.h"
#include "client/exchange.h"
#include "tests/rig/free_port.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// What hth_events_open needs of a connection.
static hearth at(char *url)
{
    return (hearth){.url = url};
}

// nng tells nobody when a subscriber has arrived: sent until the first one comes, and then all that
// were sent after that.
static void arrive(hth_publisher *p, hth_events *e, const char *job)
{
    hth_event got;
    uint64_t sent = 0;
    do {
        hth_publisher_job(p, job, "{\"state\":\"hello\"}", ++sent, UINT64_MAX);
    } while (hth_events_next(e, 20, &got) != HTH_OK);
    while (got.done < sent) {
        assert_ok(hth_events_next(e, 300000, &got));
    }
}

static void urls_are_beside(void **state)
{
    char url[100];
    assert_ok(hth_events_url("ipc:///run/hearth.sock", url, sizeof url));
    assert_string_equal(url, "ipc:///run/hearth.sock.events");
    assert_ok(hth_events_url("inproc://a", url, sizeof url));
    assert_string_equal(url, "inproc://a.events");
    assert_ok(hth_events_url("tcp://127.0.0.1:8999", url, sizeof url));
    assert_string_equal(url, "tcp://127.0.0.1:9000");
    assert_ok(hth_events_url("tcp://[::1]:1", url, sizeof url));
    assert_string_equal(url, "tcp://[::1]:2");
    static const char *const bad[] = {"tcp://a", "tcp://a:65535", "tcp://a:1x", "tls+tcp://a:1",
                                      ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(hth_events_url(bad[i], url, sizeof url), HTH_ENOTSUP);
    }
}

// unlink_lock removes what a publisher leaves: the file that says who listens at `ipc`.
static void unlink_lock(const char *ipc)
{
    char lock[100];
    snprintf(lock, sizeof lock, "%s.events.lock", ipc + 6);
    assert_int_equal(unlink(lock), 0);
}

static void jobs_have_topics(void **state)
{
    char ipc[80], tcp[80];
    snprintf(ipc, sizeof ipc, "ipc:///tmp/hearth-publish-%d", (int)getpid());
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", free_port(2));
    char *urls[] = {ipc, "inproc://publish-test", tcp};
    hth_allowances *allowances;
    hth_publisher *p;
    assert_ok(hth_allowances_open(&allowances));
    assert_ok(hth_publisher_open(allowances, &p));
    for (int i = 0; i < 3; i++) {
        hth_publisher_listen(p, urls[i]);
    }
    assert_ok(hth_publisher_start(p));
    for (int i = 0; i < 3; i++) {
        hearth h = at(urls[i]);
        hth_events *e;
        hth_event got;
        hth_err err = hth_events_open(&h, "net", &e);
        if (err != HTH_OK) {
            fail_msg("%s", hth_err_detail());
        }
        arrive(p, e, "net");
        hth_publisher_job(p, "net2", "{}", 1, 9);
        hth_publisher_job(p, "ne", "{}", 2, 9);
        hth_publisher_job(p, "net", "{\"loss\":0.5}", 3, 9);
        assert_ok(hth_events_next(e, 300000, &got));
        assert_string_equal(got.what, "{\"loss\":0.5}");
        assert_true(got.done == 3 && got.total == 9);
        assert_int_equal(hth_events_next(e, 10, &got), HTH_ETIMEDOUT);
        hth_events_close(e);
    }
    hearth none = at("ipc:///tmp/hearth-publish-nobody");
    hth_events *e;
    assert_int_not_equal(hth_events_open(&none, "net", &e), HTH_OK);
    assert_null(e);
    hth_publisher_close(p);
    hth_allowances_close(allowances);
    assert_int_equal(access(ipc + 6, F_OK), -1);
    unlink_lock(ipc);
}

// A hundred thousand events to who never reads, and to who comes late.
static void nobody_waits(void **state)
{
    char ipc[80];
    hth_allowances *allowances;
    hth_publisher *p;
    hth_events *e;
    hth_event got;
    snprintf(ipc, sizeof ipc, "ipc:///tmp/hearth-publish-%d", (int)getpid());
    assert_ok(hth_allowances_open(&allowances));
    assert_ok(hth_publisher_open(allowances, &p));
    hth_publisher_listen(p, ipc);
    assert_ok(hth_publisher_start(p));
    hearth h = at(ipc);
    assert_ok(hth_events_open(&h, "net", &e));
    arrive(p, e, "net");
    uint64_t start = hth_now_ns();
    for (uint64_t i = 0; i < 100000; i++) {
        hth_publisher_job(p, "net", "{\"step\":1,\"loss\":0.123456789,\"ms\":12.345}", i, 100000);
    }
    // a millisecond of waiting for each would be more
    assert_true(hth_now_ns() - start < 60 * (uint64_t)1000000000);
    int n = 0;
    for (; hth_events_next(e, n == 0 ? 300000 : 200, &got) == HTH_OK; n++) {
    }
    assert_true(n > 0 && n < 100000);
    hth_events_close(e);
    hth_publisher_close(p);
    hth_allowances_close(allowances);
    unlink_lock(ipc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_are_beside),
        cmocka_unit_test(jobs_have_topics),
        cmocka_unit_test(nobody_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
