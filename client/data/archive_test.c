// SPDX-License-Identifier: Apache-2.0
// Arrays of any shapes out of an archive, from a file and from its bytes; data_test has what numpy
// wrote, too, and every damage of it, through the same readers.
#include "base/test.h"
#include "client/data/archive.h"
#include "client/npy.h"

#define DATA "tests/data/datasets/"

static void check_array(const hth_archive *archive, const char *name, const char *wanted)
{
    hearth_tensor got, want;
    int i = hth_archive_find(archive, name);
    assert_true(i >= 0);
    assert_ok(hth_npy_read(wanted, &want));
    assert_ok(hth_archive_read(archive, i, &got));
    assert_int_equal(got.dtype, want.dtype);
    assert_int_equal(got.rank, want.rank);
    assert_memory_equal(got.shape, want.shape, sizeof got.shape);
    assert_int_equal(got.bytes, want.bytes);
    assert_memory_equal(got.data, want.data, want.bytes);
    hth_free(got.data);
    hth_free(want.data);
}

static void test_arrays(void **state)
{
    static const struct {
        const char *file, *x, *y;
    } cases[] = {{DATA "stored.npz", "x", "y"},
                 {DATA "deflated.npz", "arr_0", "arr_1"},
                 {DATA "fortran.npz", "x", "y"}};
    int fds = test_open_fds();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hth_archive a;
        void *data;
        size_t n;
        char names[40];
        assert_ok(hth_archive_open(cases[i].file, &a));
        assert_int_equal(a.n, 2);
        assert_int_equal(hth_archive_find(&a, "z"), -1);
        check_array(&a, cases[i].y, DATA "bytes.y.npy");
        check_array(&a, cases[i].x, DATA "bytes.x.npy");
        hth_archive_names(&a, names, sizeof names);
        assert_string_equal(names, i == 1 ? "'arr_0', 'arr_1'" : "'x', 'y'");
        assert_string_equal(hth_archive_names(&a, names, 14), i == 1 ? "'arr_0', .." : "'x', 'y'");
        hth_archive_close(&a);
        assert_ok(hth_file_load(cases[i].file, 1 << 20, &data, &n));
        assert_true(hth_archive_is(data, n));
        assert_ok(hth_archive_of("standard input", data, n, &a));
        hth_free(data);
        check_array(&a, cases[i].x, DATA "bytes.x.npy");
        hth_archive_close(&a);
        hth_archive_close(&a);
    }
    assert_int_equal(test_open_fds(), fds);
}

static void test_wrong(void **state)
{
    hth_archive a;
    hearth_tensor t;
    void *data;
    size_t n;
    int fds = test_open_fds();
    assert_err(hth_archive_open(DATA "nothing.npz", &a), HTH_ENOENT, "nothing.npz");
    assert_err(hth_archive_open(DATA "bytes.x.npy", &a), HTH_ECORRUPT, "is no zip archive");
    assert_ok(hth_file_load(DATA "stored.npz", 1 << 20, &data, &n));
    for (size_t cut = 0; cut < n; cut += 7) {
        assert_err(hth_archive_of("it", data, cut, &a), HTH_ECORRUPT, "'it'");
    }
    assert_err(hth_archive_of("it", "PK\5\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22, &a), HTH_EINVAL,
               "'it' has no arrays");
    ((uint8_t *)data)[200] ^= 1; // an element of x
    assert_ok(hth_archive_of("it", data, n, &a));
    assert_err(hth_archive_read(&a, 0, &t), HTH_ECORRUPT, "it: 'x' is damaged");
    assert_null(t.data);
    hth_archive_close(&a);
    hth_free(data);
    assert_int_equal(test_open_fds(), fds);
}

static hth_err read_all(const char *file)
{
    hth_archive a;
    hearth_tensor t;
    HTH_TRY(hth_archive_open(file, &a));
    hth_err err = HTH_OK;
    for (int i = 0; i < a.n && err == HTH_OK; i++) {
        err = hth_archive_read(&a, i, &t);
        hth_free(t.data);
    }
    hth_archive_close(&a);
    return err;
}

static void test_no_memory(void **state)
{
    FAULT_LOOP(read_all(DATA "stored.npz"));
    FAULT_LOOP(read_all(DATA "fortran.npz"));
    FAULT_LOOP(read_all(DATA "deflated.npz"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arrays), cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
