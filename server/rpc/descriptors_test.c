// SPDX-License-Identifier: Apache-2.0
// Descriptors that clients pass: taken once, by the same user, looked at before they are used, and
// closed with their connection; greetings and messages that do not keep to the rules.
#include "tests/rig/server_rig.h"

#include "base/ipc/memfd.h"
#include "base/settings.h"
#include "client/wire.h"
#include "server/net/accept_guard.h"
#include "tests/rig/fake_engine.h"
#include "tests/rig/pass_fd.h"
#include "tests/rig/raw_ring.h"

#include <nng/protocol/reqrep0/req.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

typedef struct fixture {
    server_rig rig;
    nng_socket socket;
    pass_fd pass;
    int memfd;
    void *memory;
} fixture;

static int setup(void **state)
{
    fixture *f = hth_calloc(1, sizeof *f);
    server_rig_make(&f->rig);
    hth_setting_reset();
    const char *urls[] = {f->rig.ipc};
    hth_server_config config = {.store = f->rig.store, .listen = urls, .n_listen = 1};
    assert_ok(hth_server_open(&config, &f->rig.server));
    assert_int_equal(nng_req0_open(&f->socket), 0);
    assert_int_equal(nng_dial(f->socket, f->rig.ipc, NULL, 0), 0);
    pass_begin(&f->pass, f->rig.ipc);
    assert_ok(hth_memfd_make("test", 4096, &f->memfd, &f->memory));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    pass_end(&f->pass);
    nng_close(f->socket);
    hth_memfd_drop(f->memfd, f->memory, 4096);
    server_rig_end(&f->rig);
    hth_free(f);
    return 0;
}

// map asks the server to map `bytes` of what was passed; the answer's error, or HTH_OK.
static hth_err map(nng_socket s, uint64_t handle, uint64_t bytes)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Map body = HEARTH__MAP__INIT;
    body.handle = handle;
    body.bytes = bytes;
    q.body_case = HEARTH__REQUEST__BODY_MAP;
    q.map = &body;
    return raw_ask(s, &q);
}

static void wait_descriptors(int want)
{
    for (int i = 0; i < 60000 && test_open_fds() != want; i++) {
        fake_nap();
    }
    assert_int_equal(test_open_fds(), want);
}

static void test_once(void **state)
{
    fixture *f = *state;
    uint64_t handle = pass_one(&f->pass, f->memfd), other = pass_one(&f->pass, f->memfd);
    assert_true(handle != 0 && other != 0 && handle != other);
    assert_ok(map(f->socket, handle, 4096));
    assert_int_equal(map(f->socket, handle, 4096), HTH_ENOENT); // taken
    assert_int_equal(map(f->socket, 0, 4096), HTH_ENOENT);
    assert_int_equal(map(f->socket, handle + 1, 4096), HTH_ENOENT);
    assert_int_equal(map(f->socket, other, 8192), HTH_EINVAL);
    assert_int_equal(map(f->socket, other, 4096), HTH_ENOENT); // it was looked at, and closed
}

// What is no sealed memfd is refused without being opened: a FIFO's writer goes on waiting.
static void test_other_files(void **state)
{
    fixture *f = *state;
    char fifo[128];
    snprintf(fifo, sizeof fifo, "%s/fifo", f->rig.dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    int fds[] = {open(fifo, O_PATH),          open("/", O_PATH),
                 open("/dev/null", O_RDWR),   open("/proc/self/exe", O_RDONLY),
                 memfd_create("unsealed", 0), socket(AF_UNIX, SOCK_STREAM, 0)};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        assert_true(fds[i] >= 0);
        uint64_t handle = pass_one(&f->pass, fds[i]);
        assert_true(handle != 0);
        assert_int_equal(map(f->socket, handle, 4096), HTH_EDENIED);
        close(fds[i]);
    }
    assert_int_equal(open(fifo, O_WRONLY | O_NONBLOCK), -1); // ENXIO: nobody reads it
}

static void test_limit(void **state)
{
    fixture *f = *state;
    uint64_t last = 0;
    int before = hth_accept_count();
    assert_true(pass_one(&f->pass, f->memfd) != 0);
    int connected = test_open_fds();
    for (int i = 1; i < 64; i++) {
        last = pass_one(&f->pass, f->memfd);
        assert_true(last != 0);
    }
    assert_int_equal(pass_one(&f->pass, f->memfd), 0); // the 65th
    assert_int_equal(test_open_fds(), connected + 63);
    assert_ok(map(f->socket, last, 4096));
    assert_true(pass_one(&f->pass, f->memfd) != 0); // there is room again
    pass_end(&f->pass);
    wait_descriptors(connected + 1 - 1 - 2); // all but what is mapped, and both ends of theirs
    assert_int_equal(hth_accept_count(), before + 1);
    pass_begin(&f->pass, f->rig.ipc);
    assert_int_equal(map(f->socket, last, 4096), HTH_ENOENT);
    assert_true(pass_one(&f->pass, f->memfd) != 0);
}

// wait_accepted waits until no more than `want` connections and descriptors count.
static void wait_accepted(int want)
{
    for (int i = 0; i < 60000 && hth_accept_count() > want; i++) {
        fake_nap();
    }
    assert_int_equal(hth_accept_count(), want);
}

// What is mapped has its place among the descriptors of local clients until it is unmapped; what
// was refused has it no more.
static void test_mapped(void **state)
{
    fixture *f = *state;
    struct rlimit files, few;
    int before = hth_accept_count(), n = 0;
    uint64_t bad = pass_one(&f->pass, f->memfd), handle = pass_one(&f->pass, f->memfd);
    assert_true(bad != 0 && handle != 0);
    assert_int_equal(hth_accept_count(), before + 3); // with the connection that passes them
    assert_int_equal(map(f->socket, bad, 8192), HTH_EINVAL);
    wait_accepted(before + 2);
    assert_ok(map(f->socket, handle, 4096));
    assert_int_equal(hth_accept_count(), before + 2);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = (struct rlimit){256, files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (hth_accept_take(HTH_ACCEPT_LOCAL)) {
        n++;
    }
    hth_accept_give(HTH_ACCEPT_LOCAL);
    handle = pass_one(&f->pass, f->memfd); // the last one
    assert_true(handle != 0);
    assert_ok(map(f->socket, handle, 4096));
    assert_int_equal(pass_one(&f->pass, f->memfd), 0);
    for (; n > 1; n--) {
        hth_accept_give(HTH_ACCEPT_LOCAL);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    nng_close(f->socket);
    wait_accepted(before); // the connection that passes them, instead of this one
    assert_int_equal(nng_req0_open(&f->socket), 0);
}

static int dial(const fixture *f, const void *hello, size_t n)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", f->rig.ipc + 6);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(send(fd, hello, n, MSG_NOSIGNAL), n);
    return fd;
}

// give sends n bytes with `count` descriptors.
static void give(int to, const void *bytes, size_t n, const int *fds, int count)
{
    char control[CMSG_SPACE(4 * sizeof(int))] = {0};
    struct iovec v = {(void *)bytes, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (count > 0) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(h), fds, (size_t)count * sizeof(int));
    }
    assert_int_equal(sendmsg(to, &m, MSG_NOSIGNAL), n);
}

static void assert_ended(int fd)
{
    char c[64];
    ssize_t n;
    while ((n = recv(fd, c, sizeof c, 0)) > 0) {
    }
    assert_true(n == 0 || n == -1);
    close(fd);
}

static void test_rules(void **state)
{
    static const char hello[] = {0, 'H', 'F', 'D', 0, 0, 0, 1}, zero[9], one[8] = {1};
    fixture *f = *state;
    const int fds[4] = {f->memfd, f->memfd, f->memfd, f->memfd};
    const struct {
        const char *bytes;
        size_t n;
        int count;
    } bad[] = {{zero, 8, 0}, {zero, 8, 2}, {zero, 8, 4}, {one, 8, 1}, {zero, 3, 1}, {zero, 9, 1}};
    int before = test_open_fds();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int fd = dial(f, hello, sizeof hello);
        give(fd, bad[i].bytes, bad[i].n, fds, bad[i].count);
        if (bad[i].n > 8) { // a whole message, and half of one without a descriptor
            char handle[8];
            assert_int_equal(recv(fd, handle, 8, MSG_WAITALL), 8);
        }
        assert_ended(fd);
    }
    // before the greeting, in it, and on a connection for requests: they are nobody's
    int fd = dial(f, "", 0);
    give(fd, hello, sizeof hello, fds, 1);
    give(fd, zero, 8, fds, 1);
    char handle[8];
    assert_int_equal(recv(fd, handle, 8, MSG_WAITALL), 8);
    close(fd);
    fd = dial(f, "\0SP\0\0\x30\0\0", 8);
    give(fd, "\1\0\0\0\0\0\0\0\x7f", 9, fds, 4);
    assert_int_equal(recv(fd, handle, 8, MSG_WAITALL), 8); // its greeting
    close(fd);
    fd = dial(f, "\0HFD\0\0\0\2", 8);
    assert_ended(fd);
    wait_descriptors(before);
}

// A handle is its user's.
static void test_other_user(void **state)
{
    fixture *f = *state;
    int status, pipefd[2];
    if (getuid() != 0) {
        skip();
    }
    assert_int_equal(chmod(f->rig.dir, 0755), 0);
    assert_int_equal(chmod(f->rig.ipc + 6, 0777), 0);
    uint64_t handle = pass_one(&f->pass, f->memfd);
    assert_int_equal(pipe(pipefd), 0);
    pid_t child = fork();
    if (child == 0) { // a forked nng is of no use: a fresh image (main)
        char text[32], out[16];
        snprintf(text, sizeof text, "%llu", (unsigned long long)handle);
        snprintf(out, sizeof out, "%d", pipefd[1]);
        execl("/proc/self/exe", "descriptors_test", "thief", f->rig.ipc, text, out, (char *)NULL);
        _exit(100);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), HTH_ENOENT);
    assert_ok(map(f->socket, handle, 4096)); // it is still there
    close(pipefd[0]);
    close(pipefd[1]);
}

static int thief(const char *url, const char *handle)
{
    nng_socket s;
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0 || nng_req0_open(&s) != 0 ||
        nng_dial(s, url, NULL, 0) != 0) {
        return 101;
    }
    return (int)map(s, strtoull(handle, NULL, 10), 4096);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "thief") == 0) {
        return thief(argv[2], argv[3]);
    }
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_once),   T(test_other_files), T(test_limit),
        T(test_mapped), T(test_rules),       T(test_other_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
