// SPDX-License-Identifier: Apache-2.0
// Plans of convolutions that are kept as texts: made once, read the next time, made anew when the
// text is damaged or another cuDNN's; every call that fails in turn. What heuristics say at once
// against the whole list.
#include "kernels/cuda/fixture.h"
#include "kernels/cuda/kept_texts.h"

#undef fixture_check

static hth_node *conv_open(fixture *f, uint64_t seed, bool relu)
{
    fixture_open(f, seed);
    int in[3] = {fixture_value(f, SHAPE(2, 4, 9, 9)), fixture_value(f, SHAPE(6, 4, 3, 3)),
                 fixture_value(f, SHAPE(6))};
    int out = fixture_value(f, SHAPE(2, 6, 9, 9));
    hth_node *n = fixture_node(f, HTH_OP_CONV, in, 3, &out, 1);
    hth_node_set_ints(n, "pads", (int64_t[]){1, 1, 1, 1}, 4);
    hth_node_set_ints(n, "strides", (int64_t[]){1, 1}, 2);
    if (relu) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU, -1, 0, 0};
    }
    return n;
}

static uint64_t prepare_calls(const fixture *f, const char *name)
{
    hth_kernel *k;
    uint64_t before = hth_cuda_fake_state()->calls;
    assert_int_equal(cuda_test_prepare(f->graph, &f->graph->nodes[f->node], name, &k), HTH_OK);
    hth_kernel_close(k);
    return hth_cuda_fake_state()->calls - before;
}

static void kept_once(void **state)
{
    kept_texts t = {.key = ""};
    hth_device_kept kept = {texts_get, texts_put, &t};
    fixture f;
    (void)conv_open(&f, 1, false);
    uint64_t made = prepare_calls(&f, "e1:0=1");
    cuda_test_device->kept = &kept;
    assert_true(prepare_calls(&f, "e1:0=1") > made); // .. and its text
    assert_int_equal(t.puts, 1);
    assert_non_null(strstr(t.key, "e1:0=1"));
    assert_non_null(strstr(t.key, cuda_test_device->props.fingerprint));
    assert_true(prepare_calls(&f, "e1:0=1") < made / 2);
    assert_int_equal(t.puts, 1);
    fixture_check(&f, "e1:0=1", false, 1e-5);
    fixture_check(&f, NULL, false, 1e-5); // another engine: another key
    fixture_close(&f);
    cuda_test_device->kept = NULL;
}

// Puts `to` where `from` stands in the kept text; `sum`: with a fitting checksum.
static void texts_change(kept_texts *texts, const char *from, char to, bool sum)
{
    char *at = strstr(texts->value, from);
    assert_non_null(at);
    at[strlen(from) - 1] = to;
    uint64_t h = 1469598103934665603u;
    for (const char *s = texts->value + 17; sum && *s != '\0'; s++) {
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    }
    if (sum) {
        char digits[17];
        snprintf(digits, sizeof digits, "%016llx", (unsigned long long)h);
        memcpy(texts->value, digits, 16);
    }
}

static void kept_badly(void **state)
{
    kept_texts t = {.key = ""};
    hth_device_kept kept = {texts_get, texts_put, &t};
    fixture f;
    (void)conv_open(&f, 2, true);
    cuda_test_device->kept = &kept;
    (void)prepare_calls(&f, "f0");
    assert_int_equal(t.puts, 1);
    kept_texts good = t;
    texts_change(&t, "Version\":9", '8', true); // another cuDNN's
    fixture_check(&f, "f0", false, 1e-5);
    assert_true(t.puts == 2 && strcmp(t.value, good.value) == 0);
    texts_change(&t, "problem\":\"", 'x', false); // damaged
    fixture_check(&f, "f0", false, 1e-5);
    assert_true(t.puts == 3 && strcmp(t.value, good.value) == 0);
    t.value[40] = '\0'; // cut off
    fixture_check(&f, "f0", false, 1e-5);
    assert_true(t.puts == 4 && strcmp(t.value, good.value) == 0);
    t.value[0] = '\0';
    fixture_check(&f, "f0", false, 1e-5);
    assert_true(t.puts == 5 && strcmp(t.value, good.value) == 0);
    fixture_close(&f);
    cuda_test_device->kept = NULL;
}

// Each call of cuDNN fails once, with the text there and without it: an answer or an error, and
// nothing is left.
static void calls_that_fail(void **state)
{
    hth_cuda_fake *driver = hth_cuda_fake_state();
    for (int there = 0; there < 3; there++) {
        kept_texts t = {.key = ""};
        hth_device_kept kept = {texts_get, texts_put, &t};
        const char *name = there == 2 ? NULL : "e1:0=1";
        fixture f;
        int failed = 0;
        hth_err err = HTH_EIO;
        (void)conv_open(&f, 3, false);
        cuda_test_device->kept = &kept;
        for (uint64_t nth = 1; nth < 400; nth++) {
            hth_kernel *k = NULL;
            memset(&t, 0, sizeof t);
            if (there == 1) {
                (void)prepare_calls(&f, name);
            }
            int64_t live = driver->live;
            driver->fail_nth = nth;
            driver->fail_with = CUDA_ERROR_UNKNOWN;
            err = cuda_test_prepare(f.graph, &f.graph->nodes[f.node], name, &k);
            bool reached = driver->fail_nth == 0;
            driver->fail_nth = 0;
            failed += err != HTH_OK;
            hth_kernel_close(k);
            assert_int_equal(driver->live, live);
            if (!reached) {
                break;
            }
        }
        assert_int_equal(err, HTH_OK);
        assert_true(there == 0 ? failed > 10 : failed < 10); // a text that fails is made anew
        fixture_close(&f);
        cuda_test_device->kept = NULL;
    }
}

static bool listed(const hth_choice *list, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

// What is known at once is part of what a search finds, costs fewer calls, and runs.
static void first_choices(void **state)
{
    for (int relu = 0; relu < 2; relu++) {
        hth_choice first[16], all[16];
        int n_first, n_all;
        fixture f;
        const hth_node *n = conv_open(&f, 4, relu != 0);
        uint64_t start = hth_cuda_fake_state()->calls;
        assert_int_equal(hth_kernel_first(cuda_test_device, f.graph, n, first, 16, &n_first),
                         HTH_OK);
        uint64_t middle = hth_cuda_fake_state()->calls;
        assert_int_equal(hth_kernel_algorithms(cuda_test_device, f.graph, n, all, 16, &n_all),
                         HTH_OK);
        assert_true(middle - start < hth_cuda_fake_state()->calls - middle);
        assert_true(n_first > 0 && n_first < n_all);
        for (int i = 0; i < n_first; i++) {
            assert_true(listed(all, n_all, first[i].name));
            fixture_check(&f, first[i].name, false, 1e-5);
        }
        fixture_close(&f);
    }
}

// Products by every algorithm of the list: the same values, each from its name alone, and never one
// whose sums have no order.
static void products(void **state)
{
    for (int gemm = 0; gemm < 2; gemm++) {
        hth_choice list[8];
        int count, bare = 0;
        fixture f;
        fixture_open(&f, 9);
        int in[3] = {fixture_value(&f, SHAPE(37, 65)), fixture_value(&f, SHAPE(65, 23)),
                     gemm ? fixture_value(&f, SHAPE(23)) : -1};
        int out = fixture_value(&f, SHAPE(37, 23));
        hth_node *n = fixture_node(&f, gemm ? HTH_OP_GEMM : HTH_OP_MAT_MUL, in, 2 + gemm, &out, 1);
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU, -1, 0, 0};
        assert_int_equal(hth_kernel_algorithms(cuda_test_device, f.graph, n, list, 8, &count),
                         HTH_OK);
        assert_int_equal(count, 3);
        for (int i = 0; i < count; i++) {
            hth_kernel *k;
            assert_int_not_equal(list[i].name[1], '4');
            assert_int_equal(cuda_test_prepare(f.graph, n, list[i].name, &k), HTH_OK);
            assert_int_equal(k->workspace_bytes, list[i].workspace_bytes);
            hth_kernel_close(k);
            fixture_check(&f, list[i].name, false, 1e-5);
            bare += list[i].workspace_bytes == 0;
        }
        assert_int_equal(bare, 1);
        fixture_check(&f, NULL, false, 1e-5);
        fixture_faults(&f, list[1].name);
        assert_int_equal(hth_kernel_first(cuda_test_device, f.graph, n, list, 8, &count), HTH_OK);
        assert_true(count >= 1 && count < 3);
        static const char *const wrong[] = {"m9:1,1,0,0,0,0,0,0",
                                            "m1:15,1,0,0,0,0,0",
                                            "m1:15,1,0,0,0,0,0,0,0",
                                            "m1:16,1,0,0,0,0,0,0",
                                            "e0",
                                            "m",
                                            "m1"};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            hth_kernel *k;
            assert_int_equal(cuda_test_prepare(f.graph, n, wrong[i], &k), HTH_ENOTSUP);
        }
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_once),       cmocka_unit_test(kept_badly),
        cmocka_unit_test(calls_that_fail), cmocka_unit_test(first_choices),
        cmocka_unit_test(products),
    };
    return cmocka_run_group_tests(tests, cuda_test_setup, cuda_test_teardown);
}
