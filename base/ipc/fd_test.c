// SPDX-License-Identifier: Apache-2.0
// Both ends in one process: a descriptor arrives with its packet, and no other one stays open.
#include "base/ipc/fd.h"

#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct fixture {
    int ends[2], pipe[2];
    int before; // descriptors of the process
} fixture;

static int setup(void **state)
{
    static fixture f;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, f.ends), 0);
    assert_int_equal(pipe(f.pipe), 0);
    f.before = test_open_fds();
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    const fixture *f = *state;
    assert_int_equal(test_open_fds(), f->before);
    close(f->ends[0]);
    close(f->ends[1]);
    close(f->pipe[0]);
    close(f->pipe[1]);
    return 0;
}

// send_many sends a packet with `n` descriptors, as hth_fd_send never does.
static void send_many(int socket, const void *packet, size_t bytes, const int *fds, size_t n)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } space = {.bytes = {0}};
    struct iovec part = {(void *)packet, bytes};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = space.bytes,
                       .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    space.head.cmsg_level = SOL_SOCKET;
    space.head.cmsg_type = SCM_RIGHTS;
    space.head.cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(&space.head), fds, n * sizeof(int));
    assert_int_equal(sendmsg(socket, &m, 0), bytes);
}

static void test_passes(void **state)
{
    const fixture *f = *state;
    struct stat sent, got;
    char packet[5] = "";
    int fd;
    assert_true(hth_fd_send(f->ends[0], "with", 5, f->pipe[1], 0));
    assert_true(hth_fd_send(f->ends[0], "none", 5, -1, MSG_DONTWAIT));
    assert_true(hth_fd_receive(f->ends[1], packet, sizeof packet, &fd, 0));
    assert_string_equal(packet, "with");
    assert_int_equal(fstat(f->pipe[1], &sent), 0);
    assert_int_equal(fstat(fd, &got), 0);
    assert_int_equal(got.st_ino, sent.st_ino);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
    assert_true(hth_fd_receive(f->ends[1], packet, sizeof packet, &fd, MSG_DONTWAIT));
    assert_string_equal(packet, "none");
    assert_int_equal(fd, -1);
}

// More than one is none, and none stays open.
static void test_many(void **state)
{
    const fixture *f = *state;
    const int fds[4] = {f->pipe[0], f->pipe[1], f->pipe[0], f->pipe[1]};
    char packet[5];
    int fd;
    for (size_t n = 2; n <= 4; n++) {
        send_many(f->ends[0], "many", 5, fds, n);
        assert_true(hth_fd_receive(f->ends[1], packet, sizeof packet, &fd, 0));
        assert_int_equal(fd, -1);
        assert_int_equal(test_open_fds(), f->before);
    }
}

static void test_other_length(void **state)
{
    const fixture *f = *state;
    char packet[5];
    int fd;
    for (size_t bytes = 4; bytes <= 6; bytes += 2) {
        assert_true(hth_fd_send(f->ends[0], "other", bytes, f->pipe[0], 0));
        assert_false(hth_fd_receive(f->ends[1], packet, sizeof packet, &fd, 0));
        assert_int_equal(errno, EBADMSG);
        assert_int_equal(fd, -1);
        assert_int_equal(test_open_fds(), f->before);
    }
}

static void test_nobody(void **state)
{
    fixture *f = *state;
    char packet[5];
    int fd;
    assert_false(hth_fd_receive(f->ends[1], packet, sizeof packet, &fd, MSG_DONTWAIT));
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fd, -1);
    while (hth_fd_send(f->ends[0], "full", 5, f->pipe[0], MSG_DONTWAIT)) {
    }
    assert_int_equal(errno, EAGAIN);
    shutdown(f->ends[0], SHUT_RDWR);
    while (hth_fd_receive(f->ends[1], packet, sizeof packet, &fd, 0)) {
        close(fd);
    }
    assert_int_equal(errno, EPIPE);
    assert_int_equal(fd, -1);
    assert_false(hth_fd_send(f->ends[0], "gone", 5, f->pipe[0], 0)); // and no signal
    assert_int_equal(errno, EPIPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_passes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_length, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
