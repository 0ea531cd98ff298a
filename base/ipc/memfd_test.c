// SPDX-License-Identifier: Apache-2.0
// Shared memory is sealed, and what others pass is taken only if it cannot shrink.
#include "base/ipc/memfd.h"

#include "base/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES 8192

static void made(void **state)
{
    int fd;
    void *p;
    assert_ok(hth_memfd_make("hearth-test", BYTES, &fd, &p));
    memset(p, 7, BYTES);
    assert_ok(hth_memfd_check(fd, BYTES));
    assert_ok(hth_memfd_check(fd, 1));
    assert_int_equal(ftruncate(fd, BYTES / 2), -1);
    assert_int_equal(ftruncate(fd, BYTES * 2), -1);
    hth_memfd_drop(fd, p, BYTES);
    hth_memfd_drop(-1, NULL, 0);
}

static void refused(void **state)
{
    int fd = memfd_create("hearth-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    assert_int_equal(hth_memfd_check(fd, BYTES), HTH_EDENIED); // it could shrink
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_int_equal(hth_memfd_check(fd, BYTES), HTH_EDENIED);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_ok(hth_memfd_check(fd, BYTES));
    assert_int_equal(hth_memfd_check(fd, BYTES + 1), HTH_EINVAL);
    assert_int_equal(hth_memfd_check(fd, 0), HTH_EINVAL);
    close(fd);
    assert_int_equal(hth_memfd_check(fd, BYTES), HTH_EDENIED); // no descriptor
    char path[] = "/tmp/hearth-memfd-XXXXXX";
    fd = mkstemp(path);
    unlink(path);
    assert_int_equal(ftruncate(fd, BYTES), 0);
    assert_int_equal(hth_memfd_check(fd, BYTES), HTH_EDENIED); // a file
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(made), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
