// SPDX-License-Identifier: Apache-2.0
// A listener in a process without descriptors: those who wait are refused, nothing spins, one line
// is logged, and once there are descriptors again the next one gets in. And what connections leave
// to the process.
#include "base/test.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/net/accept_guard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS 20
#define FILLED  4096

typedef struct fixture {
    struct event_base *base;
    struct evconnlistener *listener;
    hth_accept_guard *guard;
    char dir[64];
    struct sockaddr_un at;
    int accepted, failed, lines;
    int fill[FILLED], n_fill;
    struct rlimit files;
} fixture;

static fixture *now;

static void sink(void *ctx, const hth_log_record *record)
{
    now->lines++;
}

static void accepted(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n,
                     void *arg)
{
    ((fixture *)arg)->accepted++;
    close(fd);
}

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    now = *state = f;
    strcpy(f->dir, "/tmp/hearth-accept-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->at.sun_family = AF_UNIX;
    snprintf(f->at.sun_path, sizeof f->at.sun_path, "%s/sock", f->dir);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &f->files), 0);
    struct rlimit few = {.rlim_cur = 256, .rlim_max = f->files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    f->base = event_base_new();
    f->listener =
        evconnlistener_new_bind(f->base, accepted, f, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC,
                                64, (struct sockaddr *)&f->at, sizeof f->at);
    assert_non_null(f->listener);
    assert_ok(hth_accept_guard_open(f->base, f->listener, "ipc://test", &f->guard));
    hth_log_sink(sink, NULL);
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    hth_log_sink(NULL, NULL);
    hth_accept_guard_close(f->guard);
    evconnlistener_free(f->listener);
    event_base_free(f->base);
    setrlimit(RLIMIT_NOFILE, &f->files);
    assert_int_equal(test_remove(f->dir), 0);
    hth_free(f);
    return 0;
}

static int dial(const fixture *f)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&f->at, sizeof f->at), 0);
    return fd;
}

static void fill(fixture *f)
{
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0) {
        assert_true(f->n_fill < FILLED);
        f->fill[f->n_fill++] = fd;
    }
}

// unfill leaves the test room for what it does itself.
static void unfill(fixture *f)
{
    while (f->n_fill > 0) {
        close(f->fill[--f->n_fill]);
    }
}

static void test_no_descriptors(void **state)
{
    fixture *f = *state;
    int client[CLIENTS], turns = 0;
    const struct timeval end = {.tv_usec = 250000}; // two rests
    char c;
    for (int i = 0; i < CLIENTS; i++) {
        client[i] = dial(f);
    }
    fill(f);
    event_base_loopexit(f->base, &end);
    while (!event_base_got_exit(f->base)) {
        event_base_loop(f->base, EVLOOP_ONCE);
        turns++;
    }
    assert_int_equal(f->accepted, 0);
    assert_int_equal(f->lines, 1);
    assert_true(turns < 20); // it spins no more: some 100,000 were there without a guard
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(read(client[i], &c, 1), 0); // refused, and not kept waiting
        close(client[i]);
    }
    unfill(f);
    client[0] = dial(f);
    while (f->accepted == 0) {
        event_base_loop(f->base, EVLOOP_ONCE);
    }
    close(client[0]);
}

// fill_kind takes connections of a kind, with a descriptor each, until there are no more.
static int fill_kind(fixture *f, hth_accept_kind kind)
{
    int n = 0;
    for (; hth_accept_take(kind); n++) {
        f->fill[f->n_fill++] = open("/dev/null", O_RDONLY);
    }
    return n;
}

static void test_limits(void **state)
{
    fixture *f = *state;
    hth_accept_measure();
    int http = hth_accept_limit(HTH_ACCEPT_HTTP), local = hth_accept_limit(HTH_ACCEPT_LOCAL);
    assert_true(http > 0 && http < 256 - 32);
    assert_int_equal(fill_kind(f, HTH_ACCEPT_HTTP), http);
    int all = http + fill_kind(f, HTH_ACCEPT_NETWORK); // what is theirs
    assert_true(all > http && all < http * 4 / 3);
    int left = fill_kind(f, HTH_ACCEPT_LOCAL);
    assert_true(left > 0 && left < local / 2);
    all += left;
    assert_int_equal(hth_accept_count(), all);
    assert_true(hth_accept_limit(HTH_ACCEPT_ADMIN) > all);
    hth_accept_measure(); // which does not count them twice
    assert_false(hth_accept_take(HTH_ACCEPT_LOCAL));
    int admins = fill_kind(f, HTH_ACCEPT_ADMIN);
    assert_true(admins > 0);
    unfill(f);
    for (int i = 0; i < http; i++) {
        hth_accept_give(HTH_ACCEPT_HTTP);
    }
    for (int i = http; i < all - left; i++) {
        hth_accept_give(HTH_ACCEPT_NETWORK);
    }
    for (int i = 0; i < left; i++) {
        hth_accept_give(HTH_ACCEPT_LOCAL);
    }
    for (int i = 0; i < admins; i++) {
        hth_accept_give(HTH_ACCEPT_ADMIN);
    }
    assert_int_equal(hth_accept_count(), 0);
}

static uint64_t clock_ns(void *ctx)
{
    return *(uint64_t *)ctx;
}

static void test_seldom(void **state)
{
    hth_seldom s = {0};
    uint64_t ns = 1000000000u, unsaid = 7;
    hth_clock_inject(clock_ns, &ns);
    assert_true(hth_seldom_now(&s, &unsaid));
    assert_int_equal(unsaid, 0);
    for (int i = 0; i < 1000; i++) {
        assert_false(hth_seldom_now(&s, &unsaid));
    }
    ns += 10000000000u;
    assert_true(hth_seldom_now(&s, &unsaid));
    assert_int_equal(unsaid, 1000);
    hth_clock_inject(NULL, NULL);
}

static void test_out_of_memory(void **state)
{
    fixture *f = *state;
    hth_accept_guard *g;
    hth_accept_guard_close(f->guard);
    f->guard = NULL;
    FAULT_LOOP(hth_accept_guard_open(f->base, f->listener, "ipc://test", &g));
    hth_accept_guard_close(g);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_no_descriptors),
        T(test_limits),
        T(test_seldom),
        T(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
