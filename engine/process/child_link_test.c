// SPDX-License-Identifier: Apache-2.0
// Both sides of a link in one process: messages with descriptors.
#include "base/test.h"
#include "base/ipc/fd.h"
#include "engine/process/child_link.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct fixture {
    hth_child_link parent, child;
    int pipes[3][2];
    int before; // descriptors of the process
} fixture;

static int setup(void **state)
{
    static fixture f;
    int ends[2];
    size_t bytes = (hth_child_control_bytes(4) + 63) / 64 * 64;
    hth_child_control *control = aligned_alloc(64, bytes);
    memset(control, 0, bytes);
    control->n_entries = 4;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    f = (fixture){.parent = {.control = control, .socket = ends[0]},
                  .child = {.control = control, .socket = ends[1]}};
    assert_ok(hth_child_link_open(&f.parent, true));
    assert_ok(hth_child_link_open(&f.child, false));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pipe(f.pipes[i]), 0);
    }
    f.before = test_open_fds();
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    assert_int_equal(test_open_fds(), f->before);
    for (int i = 0; i < 3; i++) {
        close(f->pipes[i][0]);
        close(f->pipes[i][1]);
    }
    close(f->parent.socket);
    close(f->child.socket);
    hth_child_link_close(&f->parent);
    hth_child_link_close(&f->child);
    free(f->parent.control);
    return 0;
}

static hth_err pass(fixture *f, uint32_t entry, const int *fd, int n)
{
    hth_child_head head = {.kind = HTH_CHILD_CALL, .entry = entry};
    return hth_child_link_pass(&f->parent, &head, "body", 5, fd, n);
}

static hth_child_head receive(fixture *f)
{
    hth_child_head head;
    const char *body;
    size_t bytes;
    assert_ok(hth_child_link_receive(&f->child, 0, &head, &body, &bytes));
    assert_int_equal(bytes, 5);
    assert_string_equal(body, "body");
    return head;
}

// take closes descriptors that came after it has seen that they are the pipes' of `sent`.
static void take(fixture *f, const hth_child_head *head, const int *sent, int n)
{
    struct stat want, got;
    int fd[HTH_FD_MOST];
    assert_ok(hth_child_link_passed(&f->child, head, fd, n));
    for (int i = 0; i < n; i++) {
        assert_int_equal(fstat(sent[i], &want), 0);
        assert_int_equal(fstat(fd[i], &got), 0);
        assert_int_equal(got.st_ino, want.st_ino);
        close(fd[i]);
    }
}

// A message gets its own descriptors and no other's: what one left behind that was refused goes to
// nobody, though the next one is for the same entry.
static void test_own_descriptors(void **state)
{
    fixture *f = *state;
    const int a[] = {f->pipes[0][0], f->pipes[1][0]}, b[] = {f->pipes[2][0]};
    const int c[] = {f->pipes[2][0], f->pipes[0][0]};
    int fd[HTH_FD_MOST];
    assert_ok(pass(f, 1, a, 2));
    assert_ok(pass(f, 1, b, 1));
    assert_ok(pass(f, 1, c, 2));
    hth_child_head head = receive(f);
    assert_int_equal(head.entry, 1);
    head = receive(f); // nobody took the first one's
    take(f, &head, b, 1);
    assert_err(hth_child_link_passed(&f->child, &(hth_child_head){.passed = head.passed}, fd, 1),
               HTH_EIO, "did not arrive");
    assert_ok(pass(f, 1, a, 2));
    (void)receive(f); // c's went with that question
    head = receive(f);
    assert_err(hth_child_link_passed(&f->child, &(hth_child_head){.passed = 0}, fd, 1), HTH_EIO,
               "did not arrive");
    take(f, &head, a, 2);
    assert_int_equal(test_open_fds(), f->before);
}

// Where there is no room, in the socket or in the ring, nothing is sent, and later all is in step.
static void test_no_room(void **state)
{
    fixture *f = *state;
    const int two[] = {f->pipes[0][0], f->pipes[1][0]}, one[] = {f->pipes[2][0]};
    hth_child_head plain = {.kind = HTH_CHILD_CALL}, head;
    static char text[64 << 10];
    int sent = 0;
    hth_err err;
    for (int round = 0; round < 3; round++) {
        int n = 0, plains = 0;
        while ((err = pass(f, 3, two, 2)) == HTH_OK) {
            n++;
        }
        assert_int_equal(err, HTH_EBUSY); // the socket
        assert_true(n > 10);
        while (n > 0) {
            head = receive(f);
            take(f, &head, two, 2);
            n--;
            sent++;
        }
        while ((err = hth_child_link_send(&f->parent, &plain, text, sizeof text, 0)) == HTH_OK) {
            plains++;
        }
        while ((err = hth_child_link_send(&f->parent, &plain, text, 5, 0)) == HTH_OK) {
            plains++;
        }
        assert_int_equal(err, HTH_EBUSY);
        assert_int_equal(pass(f, 3, two, 2), HTH_EBUSY); // the ring
        assert_int_equal(recv(f->child.socket, text, 1, MSG_PEEK | MSG_DONTWAIT), -1);
        for (; plains > 0; plains--) {
            const char *body;
            size_t bytes;
            assert_ok(hth_child_link_receive(&f->child, 0, &head, &body, &bytes));
            assert_int_equal(head.passed, 0);
        }
        assert_ok(pass(f, 3, one, 1));
        head = receive(f);
        take(f, &head, one, 1);
    }
    assert_true(sent > 30);
}

// Whose other side is gone is told so.
static void test_gone(void **state)
{
    fixture *f = *state;
    const int one[] = {f->pipes[2][0]};
    shutdown(f->child.socket, SHUT_RDWR);
    assert_err(pass(f, 0, one, 1), HTH_ECANCELED, "gone");
    hth_ring_stop(f->child.from);
    assert_int_equal(pass(f, 0, one, 1), HTH_ECANCELED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_own_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gone, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
