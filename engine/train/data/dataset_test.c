// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"
#include "engine/train/data/dataset.h"

#include <stdio.h>
#include <unistd.h>

static char path[] = "/tmp/hearth-dataset-XXXXXX";

static void write_file(const char *head, uint64_t head_bytes, size_t data_bytes)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fwrite(&head_bytes, 8, 1, f);
    fwrite(head, 1, strlen(head), f);
    for (size_t i = 0; i < data_bytes; i++) {
        fputc((int)(i & 255), f);
    }
    fclose(f);
}

#define X "\"x\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]}"
#define Y "\"y\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[24,48]}"

static void good_files_open(void **state)
{
    hth_dataset d;
    const char *head = "{\"__metadata__\":{\"a\":\"b\"}," X "," Y "}";
    write_file(head, strlen(head), 48);
    assert_ok(hth_dataset_open(path, &d));
    assert_int_equal(d.n_samples, 3);
    assert_int_equal(d.n_tensors, 2);
    const hth_dataset_tensor *x = hth_dataset_find(&d, "x");
    assert_non_null(x);
    assert_null(hth_dataset_find(&d, "z"));
    const int64_t rows[] = {2, 0};
    unsigned char out[16];
    assert_ok(hth_dataset_gather(&d, x, rows, 2, out));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(out[i], 16 + i);
        assert_int_equal(out[8 + i], i);
    }
    hth_dataset_close(&d);
}

static void bad_files_are_refused(void **state)
{
    static const struct {
        const char *head, *words;
        int64_t head_bytes; // -1: right
        size_t data;
    } bad[] = {
        {"", "does not begin with its header", 1000, 0},
        {"{" X, "no JSON", -1, 24},
        {"[1]", "no JSON", -1, 0},
        {"{" X "," X "}", "no JSON", -1, 24},
        {"{" X "," Y "}", "lies outside", -1, 40},
        {"{\"x\":{\"dtype\":\"F33\",\"shape\":[3],\"data_offsets\":[0,12]}}", "unknown type 'F33'",
         -1, 12},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", "lies outside", -1,
         12},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-3],\"data_offsets\":[0,12]}}",
         "an invalid dimension", -1, 12},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":3,\"data_offsets\":[0,12]}}", "no shape", -1, 12},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", "single value", -1, 4},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", "no samples", -1, 0},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,8],\"data_offsets\":[0,4]}}", "",
         -1, 4},
        {"{" X ",\"y\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[24,40]}}", "has 2", -1,
         40},
        {"{}", "no samples", -1, 0},
    };
    hth_dataset d;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t n = bad[i].head_bytes >= 0 ? (uint64_t)bad[i].head_bytes : strlen(bad[i].head);
        write_file(bad[i].head, n, bad[i].data);
        hth_err err = hth_dataset_open(path, &d);
        if (err == HTH_OK || strstr(hth_err_detail(), bad[i].words) == NULL) {
            fail_msg("%s: %s", bad[i].head, hth_err_detail());
        }
        assert_non_null(strstr(hth_err_detail(), path));
    }
    FILE *f = fopen(path, "w");
    fclose(f);
    assert_err(hth_dataset_open(path, &d), HTH_EINVAL, "empty");
    assert_err(hth_dataset_open("/nowhere/x", &d), HTH_ENOENT, "/nowhere/x");
}

static void orders_depend_on_seed_and_epoch(void **state)
{
    hth_dataset d = {.n_samples = 100};
    int64_t a[100], b[100];
    bool seen[100] = {false};
    hth_dataset_order(d.n_samples, true, 5, 1, a);
    hth_dataset_order(d.n_samples, true, 5, 1, b);
    assert_memory_equal(a, b, sizeof a);
    for (int i = 0; i < 100; i++) {
        assert_true(a[i] >= 0 && a[i] < 100 && !seen[a[i]]);
        seen[a[i]] = true;
    }
    hth_dataset_order(d.n_samples, true, 5, 2, b);
    assert_memory_not_equal(a, b, sizeof a);
    hth_dataset_order(d.n_samples, true, 6, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
    hth_dataset_order(d.n_samples, false, 6, 1, b);
    assert_true(b[0] == 0 && b[99] == 99);
}

// A tensor whose rows are long is not kept in memory: what is cut off is missed when it is read.
static void files_that_are_cut(void **state)
{
    static char row[8192], head[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[16,8192],"
                                    "\"data_offsets\":[0,131072]},"
                                    "\"y\":{\"dtype\":\"U8\",\"shape\":[16],"
                                    "\"data_offsets\":[131072,131088]}}";
    hth_dataset d;
    write_file(head, strlen(head), 131088);
    assert_ok(hth_dataset_open(path, &d));
    const hth_dataset_tensor *x = hth_dataset_find(&d, "x"), *y = hth_dataset_find(&d, "y");
    assert_null(x->t.data);
    assert_non_null(y->t.data);
    const int64_t first = 0, last = 15;
    assert_ok(hth_dataset_gather(&d, x, &last, 1, row));
    assert_int_equal((unsigned char)row[77], 77);
    assert_int_equal(truncate(path, 65536), 0);
    assert_ok(hth_dataset_gather(&d, x, &first, 1, row));
    assert_err(hth_dataset_gather(&d, x, &last, 1, row), HTH_EIO,
               "changed while it was being read");
    assert_ok(hth_dataset_gather(&d, y, &last, 1, row));
    hth_dataset_close(&d);
}

// What stands in a file that is no dataset is told to nobody.
static void others_files_stay_unread(void **state)
{
    static const char *const other[] = {"root:*:20000:0:99999:7:::\n", "{\"password\":\"secret\"}"};
    hth_dataset d;
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(path, "w");
        uint64_t n = strlen(other[i]);
        fwrite(&n, i == 0 ? 0 : 8, 1, f); // the second begins as a dataset does
        fputs(other[i], f);
        fclose(f);
        assert_int_equal(hth_dataset_open(path, &d), HTH_EINVAL);
        assert_null(strstr(hth_err_detail(), "36192516810"));
        assert_null(strstr(hth_err_detail(), "root"));
        assert_null(strstr(hth_err_detail(), "secret"));
    }
    assert_err(hth_dataset_open("/dev/zero", &d), HTH_EINVAL, "not a regular file");
    assert_err(hth_dataset_open("/tmp", &d), HTH_EINVAL, "a folder");
}

static hth_err open_once(void)
{
    hth_dataset d;
    hth_err err = hth_dataset_open(path, &d);
    if (err == HTH_OK) {
        hth_dataset_close(&d);
    }
    return err;
}

static void allocations_fail_cleanly(void **state)
{
    const char *head = "{" X "," Y "}";
    write_file(head, strlen(head), 48);
    FAULT_LOOP(open_once());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files_open),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(files_that_are_cut),
        cmocka_unit_test(others_files_stay_unread),
        cmocka_unit_test(orders_depend_on_seed_and_epoch),
        cmocka_unit_test(allocations_fail_cleanly),
    };
    int fd = mkstemp(path);
    close(fd);
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rv;
}
