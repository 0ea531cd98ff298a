// SPDX-License-Identifier: Apache-2.0
#include "modelstore/paths.h"

#include "modelstore/store_test.h"

#include <errno.h>

static const hth_named_path data = {HTH_OPEN_DATA, "/data/digits.safetensors"},
                            spill = {HTH_OPEN_SCRATCH, "/data/spill"};

static void test_list(void **state)
{
    hth_store *s = test_open(state);
    assert_ok(hth_paths_keep(s, data)); // no hearthd works on it: nothing is noted
    assert_false(hth_paths_kept(s, data));
    char path[96];
    snprintf(path, sizeof path, "%s/paths", (const char *)*state);
    assert_int_not_equal(access(path, F_OK), 0);

    assert_ok(hth_paths_begin(s, &spill, 1)); // of an older store: what its jobs need
    assert_true(hth_paths_kept(s, spill));
    assert_false(hth_paths_kept(s, data));
    assert_ok(hth_paths_keep(s, data));
    assert_ok(hth_paths_keep(s, data));
    assert_true(hth_paths_kept(s, data));
    assert_int_equal(test_count_files(state, "paths"), 2);
    // as what it was named, and letter by letter
    assert_false(hth_paths_kept(s, (hth_named_path){HTH_OPEN_SCRATCH, data.path}));
    assert_false(hth_paths_kept(s, (hth_named_path){HTH_OPEN_DATA, "/data/./digits.safetensors"}));
    assert_false(hth_paths_kept(s, (hth_named_path){HTH_OPEN_DATA, ""}));
    assert_false(hth_paths_kept(s, (hth_named_path){HTH_OPEN_DATA, "../format"}));

    assert_ok(hth_paths_begin(s, &data, 1)); // what is needed stays, and nothing comes
    assert_true(hth_paths_kept(s, data));
    assert_false(hth_paths_kept(s, spill));
    assert_ok(hth_paths_begin(s, &spill, 1));
    assert_int_equal(test_count_files(state, "paths"), 0);
    hth_store_close(s);
}

// Each operation fails once: the list is not there, or has all; and the next try makes it whole.
static void test_faults(void **state)
{
    hth_store *s = test_open(state);
    hth_err err = HTH_EIO;
    for (uint64_t nth = 1; err != HTH_OK; nth++) {
        assert_true(nth < 20);
        hth_store_file_fault(nth, ENOSPC);
        err = hth_paths_begin(s, &spill, 1);
        hth_store_file_fault(0, 0);
        char path[96];
        snprintf(path, sizeof path, "%s/paths", (const char *)*state);
        assert_true(access(path, F_OK) != 0 || hth_paths_kept(s, spill));
    }
    assert_ok(hth_paths_begin(s, &spill, 1));
    assert_true(hth_paths_kept(s, spill));
    hth_store_close(s);
}

// What one that ended too early has noted is not what the next one allows.
static void test_begun_before(void **state)
{
    char path[96];
    snprintf(path, sizeof path, "%s/paths", (const char *)*state);
    hth_store *s = test_open(state);
    for (uint64_t nth = 1; access(path, F_OK) != 0; nth++) {
        hth_store_file_fault(nth, ENOSPC);
        (void)hth_paths_begin(s, &data, 1);
        hth_store_file_fault(0, 0);
        if (access(path, F_OK) != 0) {
            assert_ok(hth_paths_begin(s, &spill, 1));
            assert_true(hth_paths_kept(s, spill));
            assert_false(hth_paths_kept(s, data));
            assert_int_equal(test_remove(path), 0);
        }
    }
    hth_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_list, test_setup, test_teardown),
        cmocka_unit_test_setup_teardown(test_faults, test_setup, test_teardown),
        cmocka_unit_test_setup_teardown(test_begun_before, test_setup, test_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
