// SPDX-License-Identifier: Apache-2.0
#define CONFORMANCE_SPEC "cpu:mem=1MiB,threads=2"
#include "tests/rig/device_conformance.h"

#include "device/cpu/copy.h"
#include "device/cpu/machine.h"
#include "device/cpu/onednn.h"
#include "device/cpu/team.h"

static void test_machine(void **state)
{
    hth_device *d;
    assert_int_equal(hth_device_open("cpu", &d), HTH_OK);
    assert_int_equal(d->props.total_bytes, hth_machine_memory());
    assert_true(d->props.budget_bytes > d->props.total_bytes / 10 * 5);
    assert_true(d->props.budget_bytes < d->props.total_bytes / 10 * 7);
    assert_int_equal(d->props.n_threads, hth_machine_threads());
    assert_int_equal(hth_team_size(), d->props.n_threads);
    const hth_onednn *o = hth_onednn_get();
    assert_non_null(o);
    assert_true(o->our_threads);
    assert_non_null(strstr(d->props.fingerprint, o->version));
    assert_non_null(strstr(d->props.description, o->version));
    hth_device_close(d);
}

static void assert_refused(const char *spec, hth_err want, const char *word)
{
    hth_device *d = (hth_device *)&d;
    assert_int_equal(hth_device_open(spec, &d), want);
    assert_null(d);
    if (strstr(hth_err_detail(), word) == NULL) {
        fail_msg("'%s': no '%s' in '%s'", spec, word, hth_err_detail());
    }
}

static void test_specification(void **state)
{
    hth_device *d;
    assert_int_equal(hth_device_open("cpu:0,mem=2MiB,threads=1", &d), HTH_OK);
    assert_int_equal(d->props.budget_bytes, 2 << 20);
    assert_int_equal(d->props.n_threads, 1);
    hth_device_close(d);
    assert_refused("tpu", HTH_EINVAL, "cpu, fake, cuda");
    assert_refused("cuda:threads=2", HTH_EINVAL, "it has: mem");
    assert_refused("cpu:memory=1GiB", HTH_EINVAL, "it has: mem,threads");
    assert_refused("cpu:seed=1", HTH_EINVAL, "it has: mem,threads");
    assert_refused("cpu:mem=12parsec", HTH_EINVAL, "unit");
    assert_refused("cpu:mem=0", HTH_EINVAL, "4 KiB");
    assert_refused("cpu:mem=101%", HTH_EINVAL, "more than 100%");
    assert_refused("cpu:mem=4000TiB", HTH_EINVAL, "machine");
    assert_refused("cpu:threads=0", HTH_EINVAL, "thread");
    assert_refused("cpu:threads=two", HTH_EINVAL, "number");
    assert_refused("cpu:isa=avx3", HTH_EINVAL, "sse2, avx2 or avx512");
    assert_refused("cpu:isa=", HTH_EINVAL, "sse2, avx2 or avx512");
    assert_refused("fake:isa=avx2", HTH_EINVAL, "it has: mem,seed");
    assert_refused("cpu:quota=0%", HTH_EINVAL, "quota '0%': expected 1% to 100%");
    assert_refused("cpu:quota=101%", HTH_EINVAL, "1% to 100%");
    assert_refused("cpu:quota=50", HTH_EINVAL, "1% to 100%");
    assert_refused("cpu:quota=-5%", HTH_EINVAL, "1% to 100%");
    assert_refused("fake:quota=50%", HTH_EINVAL, "it has: mem,seed");
    assert_refused("cpu:1024", HTH_EINVAL, "at most 1023");
    assert_refused("", HTH_EINVAL, "unknown device");
}

// Lengths and places around every threshold, and nothing beside the block.
static void test_team_copies(void **state)
{
    enum { ROOM = (3 << 20) + 256 };
    static const size_t length[] = {0, 1, 63, 65536, 65537, (1 << 20) - 1, 1 << 20, (3 << 20) + 5};
    static char from[ROOM], to[ROOM];
    for (size_t i = 0; i < ROOM; i++) {
        from[i] = (char)(i * 31 + i / 251);
    }
    for (int threads = 1; threads <= 3; threads++) {
        hth_team_set(threads);
        for (size_t k = 0; k < 2 * sizeof length / sizeof *length; k++) {
            size_t n = length[k / 2], at = 64 + (k % 2) * 3;
            memset(to, 'x', ROOM);
            hth_team_copy(to + at, from + 7, n);
            assert_memory_equal(to + at, from + 7, n);
            assert_true(to[at - 1] == 'x' && to[at + n] == 'x');
        }
    }
}

static void test_copies_take_turns_where_all_processors_compute(void **state)
{
    char from[100] = "abc", to[100] = "";
    hth_device *d;
    hth_stream *s;
    assert_int_equal(hth_device_open("cpu:mem=1MiB", &d), HTH_OK);
    assert_true(d->props.inline_copies);
    assert_int_equal(hth_stream_open(d, HTH_STREAM_COMPUTE, &s), HTH_OK);
    assert_int_equal(hth_stream_copy(s, to, from, sizeof to), HTH_OK);
    assert_string_equal(to, "abc"); // before any sync
    hth_stream_close(s);
    hth_device_close(d);
    if (hth_machine_threads() > 1) {
        assert_int_equal(hth_device_open("cpu:mem=1MiB,threads=1", &d), HTH_OK);
        assert_false(d->props.inline_copies);
        hth_device_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CONFORMANCE_TESTS,
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_specification),
        cmocka_unit_test(test_team_copies),
        cmocka_unit_test(test_copies_take_turns_where_all_processors_compute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
