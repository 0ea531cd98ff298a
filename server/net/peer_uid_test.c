// SPDX-License-Identifier: Apache-2.0
#include "server/net/peer_uid.h"

#include "base/test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// listen_at returns a socket that listens at a free port of a loopback address, and where that is.
static int listen_at(const char *host, struct sockaddr_in6 *at, socklen_t *n)
{
    bool six = strchr(host, ':') != NULL;
    int family = six ? AF_INET6 : AF_INET, off = 0;
    memset(at, 0, sizeof *at);
    if (six) {
        at->sin6_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, host, &at->sin6_addr), 1);
        *n = sizeof *at;
    } else {
        struct sockaddr_in *four = (struct sockaddr_in *)at;
        four->sin_family = AF_INET;
        assert_int_equal(inet_pton(AF_INET, host, &four->sin_addr), 1);
        *n = sizeof *four;
    }
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd < 0) {
        return -1; // no IPv6 here
    }
    if (six) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, (struct sockaddr *)at, *n) != 0) {
        close(fd);
        return -1;
    }
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, n), 0);
    return fd;
}

// dial_as connects as `uid` in a process of its own, which ends when `stop` is closed.
static pid_t dial_as(uid_t uid, const struct sockaddr_in6 *at, socklen_t n, int stop[2])
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char c;
        close(stop[1]);
        int bad = uid != getuid() && setuid(uid) != 0;
        int fd = socket(at->sin6_family, SOCK_STREAM, 0);
        bad = bad || connect(fd, (const struct sockaddr *)at, n) != 0;
        _exit(bad || read(stop[0], &c, 1) != 0);
    }
    return pid;
}

static void expect_uid(const char *host, uid_t uid)
{
    struct sockaddr_in6 at;
    socklen_t n;
    int stop[2], status, l = listen_at(host, &at, &n);
    uid_t found = (uid_t)-2;
    if (l < 0) {
        return;
    }
    if (at.sin6_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&at.sin6_addr)) {
        // both kinds come in here: IPv4's addresses are written as IPv6's
        struct sockaddr_in four = {.sin_family = AF_INET,
                                   .sin_port = at.sin6_port,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        memcpy(&at, &four, n = sizeof four);
    }
    assert_int_equal(pipe(stop), 0);
    pid_t pid = dial_as(uid, &at, n, stop);
    int fd = accept(l, NULL, NULL);
    assert_true(fd >= 0);
    assert_ok(hth_peer_uid(fd, &found));
    assert_int_equal(found, uid);
    close(stop[0]);
    close(stop[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    // its program is gone: nobody's, and not root's
    assert_err(hth_peer_uid(fd, &found), HTH_ENOENT, "other end");
    close(fd);
    close(l);
}

static void test_own(void **state)
{
    expect_uid("127.0.0.1", getuid());
    expect_uid("127.1.2.3", getuid());
    expect_uid("::1", getuid());
    expect_uid("::", getuid());
}

static void test_other(void **state)
{
    if (getuid() != 0) {
        skip();
    }
    expect_uid("127.0.0.1", 65534);
    expect_uid("::1", 65534);
    expect_uid("::", 65534);
}

// Half closed, it is still its program's; what is no TCP socket has no such peer.
static void test_states(void **state)
{
    struct sockaddr_in6 at;
    socklen_t n;
    int pair[2], l = listen_at("127.0.0.1", &at, &n), c = socket(AF_INET, SOCK_STREAM, 0);
    uid_t uid;
    assert_int_equal(connect(c, (struct sockaddr *)&at, n), 0);
    int fd = accept(l, NULL, NULL);
    assert_int_equal(shutdown(c, SHUT_WR), 0);
    assert_ok(hth_peer_uid(fd, &uid));
    assert_int_equal(uid, getuid());
    assert_err(hth_peer_uid(l, &uid), HTH_ENOENT, "other end");
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_err(hth_peer_uid(pair[0], &uid), HTH_ENOENT, "other end");
    int open[] = {l, c, fd, pair[0], pair[1]};
    for (int i = 0; i < 5; i++) {
        close(open[i]);
    }
    assert_err(hth_peer_uid(c, &uid), HTH_ENOENT, "other end");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_other),
        cmocka_unit_test(test_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
