// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"
#include "engine/process/child_link.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

// Descriptors whose message never came are passed over, and nobody waits for one that is not there.
static void test_descriptors_in_step(void **state)
{
    int ends[2], fd, pipes[3][2];
    struct stat sent, got;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        assert_ok(hth_child_fd_send(ends[0], 7u + (uint32_t)i, pipes[i][0]));
    }
    assert_ok(hth_child_fd_receive(ends[1], 8, &fd));
    assert_int_equal(fstat(pipes[1][0], &sent), 0);
    assert_int_equal(fstat(fd, &got), 0);
    assert_int_equal(got.st_ino, sent.st_ino);
    close(fd);
    assert_err(hth_child_fd_receive(ends[1], 7, &fd), HTH_EIO, "did not arrive");
    close(ends[0]);
    close(ends[1]);
    for (int i = 0; i < 3; i++) {
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptors_in_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
