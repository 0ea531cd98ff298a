// SPDX-License-Identifier: Apache-2.0
#include "memmgr/spill.h"

#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

// A directory on a disk (the working tree's), the same through the page cache, and one in memory.
static const char *const dirs[] = {".", ".", "/dev/shm"};

static void fill(unsigned char *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        at[i] = (unsigned char)(seed >> 24);
    }
}

// Ranges of odd sizes, below, at and above a block, written in one order and read in another.
static void test_bytes_come_back(void **state)
{
    static const size_t sizes[] = {1, 63, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, 3000001, 0};
    enum { N = sizeof sizes / sizeof *sizes };
    for (size_t d = 0; d < sizeof dirs / sizeof *dirs; d++) {
        hth_spill *s;
        uint64_t at[N], end = 0;
        for (int i = 0; i < N; i++) {
            at[i] = end;
            end += (sizes[i] + HTH_SPILL_ALIGN - 1) / HTH_SPILL_ALIGN * HTH_SPILL_ALIGN;
        }
        unsigned char *a = hth_alloc(3000002), *b = hth_alloc(3000002);
        assert_ok(hth_spill_open(dirs[d], end, &s));
        if (d == 1) {
            assert_ok(hth_spill_buffer(s));
        }
        for (unsigned round = 0; round < 2; round++) {
            for (int i = N - 1; i >= 0; i--) {
                fill(a, sizes[i], (unsigned)i + round * 100);
                assert_ok(hth_spill_write(s, at[i], a, sizes[i]));
            }
            uint64_t count = hth_alloc_count();
            for (int i = 0; i < N; i++) {
                fill(a, sizes[i], (unsigned)i + round * 100);
                b[sizes[i]] = 0xA5;
                assert_ok(hth_spill_read(s, at[i], b, sizes[i]));
                assert_memory_equal(a, b, sizes[i]);
                assert_int_equal(b[sizes[i]], 0xA5);
            }
            assert_int_equal(hth_alloc_count(), count);
        }
        const void *map;
        hth_spill_unmap(s);
        assert_ok(hth_spill_map(s, &map));
        for (int i = 0; i < N; i++) {
            fill(a, sizes[i], (unsigned)i + 100);
            assert_memory_equal((const char *)map + at[i], a, sizes[i]);
        }
        hth_spill_unmap(s);
        fill(a, sizes[4], 7); // a view is not in the way of what comes after it
        assert_ok(hth_spill_write(s, at[4], a, sizes[4]));
        assert_ok(hth_spill_map(s, &map));
        assert_memory_equal((const char *)map + at[4], a, sizes[4]);
        assert_err(hth_spill_write(s, 64, a, 1), HTH_EINVAL, "64");
        assert_err(hth_spill_read(s, end, b, 1), HTH_EINVAL, "spill file");
        assert_err(hth_spill_write(s, 0, a, end + 1), HTH_EINVAL, "spill file");
        hth_spill_close(s);
        hth_free(a);
        hth_free(b);
    }
}

static void test_what_cannot_be(void **state)
{
    hth_spill *s;
    assert_int_not_equal(hth_spill_open("/nowhere/at/all", 1, &s), HTH_OK);
    assert_null(s);
    assert_err(hth_spill_open(".", (uint64_t)1 << 55, &s), HTH_ETOOBIG, "reserve");
    hth_spill_close(NULL);
}

static int flush_errno; // of the flushes from now on; 0: they succeed

// In the place of libc's.
int sync_file_range(int fd, off64_t at, off64_t bytes, unsigned flags)
{
    if (flush_errno == 0) {
        return (int)syscall(SYS_sync_file_range, fd, at, bytes, flags);
    }
    errno = flush_errno;
    return -1;
}

// What the page cache has taken may still not reach the disk, and is no longer there then.
static void test_bytes_that_do_not_reach_the_disk(void **state)
{
    static const int fatal[] = {EIO, ENOSPC, EDQUOT}, harmless[] = {ENOSYS, EINVAL, ESPIPE};
    char bytes[100] = "";
    hth_spill *s;
    assert_ok(hth_spill_open(".", sizeof bytes, &s));
    assert_ok(hth_spill_buffer(s));
    for (int i = 0; i < 3; i++) {
        flush_errno = harmless[i];
        assert_ok(hth_spill_write(s, 0, bytes, sizeof bytes));
        flush_errno = fatal[i];
        assert_int_not_equal(hth_spill_write(s, 0, bytes, sizeof bytes), HTH_OK);
        assert_ok(hth_spill_read(s, 0, bytes, sizeof bytes));
    }
    flush_errno = 0;
    hth_spill_close(s);
}

static hth_err open_and_write(void)
{
    hth_spill *s;
    HTH_TRY(hth_spill_open(".", 4096, &s));
    hth_err err = hth_spill_write(s, 0, "x", 1);
    hth_spill_close(s);
    return err;
}

static void test_allocation_faults(void **state)
{
    FAULT_LOOP(open_and_write());
}

static void test_speed(void **state)
{
    hth_spill_speed v;
    assert_ok(hth_spill_measure(".", 8 << 20, &v));
    print_message("# disk: write %.0f, read %.0f MB/s, latency %.0f us\n",
                  v.write_bytes_per_s / 1e6, v.read_bytes_per_s / 1e6, v.latency_us);
    assert_true(v.write_bytes_per_s > 1e5 && v.read_bytes_per_s > 1e5 && v.latency_us > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_back),
        cmocka_unit_test(test_what_cannot_be),
        cmocka_unit_test(test_bytes_that_do_not_reach_the_disk),
        cmocka_unit_test(test_allocation_faults),
        cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
