// SPDX-License-Identifier: Apache-2.0
#include "base/test.h"

#include "base/isa.h"
#include "device/cpu/isa_claim.h"
#include "device/device.h"

#include <string.h>

static void assert_refused(const char *spec, hth_err want, const char *word)
{
    hth_device *d = (hth_device *)&d;
    assert_err(hth_device_open(spec, &d), want, word);
    assert_null(d);
}

static void open_isa(const char *spec, int bytes, const char *says, char fingerprint[160])
{
    hth_device *d;
    if (bytes > hth_isa_bytes()) {
        assert_refused(spec, HTH_ENOTSUP, "the widest set here is");
        return;
    }
    assert_ok(hth_device_open(spec, &d));
    assert_int_equal(d->props.vector_bytes, bytes);
    assert_int_equal(hth_isa_bytes(), bytes);
    assert_false(hth_isa_amx());
    assert_non_null(strstr(d->props.description, says));
    snprintf(fingerprint, 160, "%s", d->props.fingerprint);
    hth_device_close(d);
}

// The fingerprint is in the key of everything that is measured.
static void test_instruction_sets(void **state)
{
    char print[3][160] = {"none", "no AVX2", "no AVX-512"};
    int all = hth_isa_bytes();
    open_isa("cpu:isa=sse2,mem=1MiB", 16, ", SSE2,", print[0]);
    open_isa("cpu:isa=avx2,mem=1MiB", 32, ", AVX2,", print[1]);
    open_isa("cpu:isa=avx512,mem=1MiB", 64, ", AVX-512,", print[2]);
    assert_string_not_equal(print[0], print[1]);
    assert_string_not_equal(print[1], print[2]);
    assert_int_equal(hth_isa_bytes(), all); // the limit ends with the device
    assert_refused("cpu:isa=sse2,mem=1", HTH_EINVAL, "4 KiB");
    assert_int_equal(hth_isa_bytes(), all); // and with one that could not be opened
    assert_ok(hth_isa_limit("sse2"));
    assert_refused("cpu:isa=avx2", HTH_ENOTSUP, "isa=avx2, but the widest set here is sse2");
    assert_ok(hth_isa_limit(NULL));
}

static void test_devices_of_a_process_share_a_set(void **state)
{
    hth_device *a, *b;
    assert_ok(hth_device_open("cpu:0,isa=sse2,mem=1MiB", &a));
    assert_refused("cpu:1,mem=1MiB", HTH_EBUSY, "cpu:1 has no isa, but cpu:0 in the same process");
    assert_refused("cpu:1,isa=avx2", HTH_EBUSY, "has isa=sse2: each set");
    assert_ok(hth_device_open("cpu:1,isa=sse2,mem=1MiB", &b));
    hth_device_close(a);
    assert_int_equal(hth_isa_bytes(), 16); // the other one is open
    hth_device_close(b);
    assert_ok(hth_device_open("cpu:0,mem=1MiB", &a));
    assert_refused("cpu:1,isa=sse2", HTH_EBUSY, "cpu:0 in the same process has no isa");
    hth_device_close(a);
    // As if oneDNN had computed for `a`.
    assert_ok(hth_device_open("cpu:0,isa=sse2,mem=1MiB", &a));
    assert_int_equal(hth_isa_claim_onednn(), 16);
    hth_device_close(a);
    assert_refused("cpu:1,mem=1MiB", HTH_EBUSY, "oneDNN computed for a device with isa=sse2");
    assert_ok(hth_device_open("cpu:1,isa=sse2,mem=1MiB", &b));
    hth_device_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_devices_of_a_process_share_a_set), // the last one: oneDNN's is kept
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
