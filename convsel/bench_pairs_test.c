// SPDX-License-Identifier: Apache-2.0
// Pairs of classes: which operators stand for them, what is remembered, what is refused.
#include "convsel/pairs.h"

#include "base/test.h"
#include "base/thread.h"
#include "kernels/cpu/fixture.h"

typedef struct memory_cache {
    char key[HTH_CONVSEL_KEY], value[4096];
    int puts, gets;
} memory_cache;

static hth_err cache_get(void *ctx, const char *key, char *value, size_t cap)
{
    memory_cache *c = ctx;
    c->gets++;
    if (strcmp(key, c->key) != 0) {
        return HTH_ENOENT;
    }
    snprintf(value, cap, "%s", c->value);
    return HTH_OK;
}

static hth_err cache_put(void *ctx, const char *key, const char *value)
{
    memory_cache *c = ctx;
    snprintf(c->key, sizeof c->key, "%s", key);
    snprintf(c->value, sizeof c->value, "%s", value);
    c->puts++;
    return HTH_OK;
}

// A small convolution, a larger one, and a ReLU.
static void graph_open(fixture *f)
{
    fixture_open(f, 7);
    f->device.props.inline_compute = f->device.props.host_visible = true;
    snprintf(f->device.props.fingerprint, sizeof f->device.props.fingerprint, "test machine");
    for (int k = 0; k < 2; k++) {
        int size = 16 << k;
        int in[2] = {fixture_value(f, SHAPE(1, 8, size, size)),
                     fixture_const(f, SHAPE(8, 8, 3, 3))};
        int y = fixture_value(f, SHAPE(1, 8, size, size));
        hth_node_set_ints(fixture_node(f, HTH_OP_CONV, in, 2, &y, 1), "pads",
                          (int64_t[]){1, 1, 1, 1}, 4);
    }
    int x = fixture_value(f, SHAPE(1, 4096)), y = fixture_value(f, SHAPE(1, 4096));
    fixture_node(f, HTH_OP_RELU, &x, 1, &y, 1);
}

static uint64_t delay_ns;

static uint64_t delay(void *ctx)
{
    return delay_ns += *(uint64_t *)ctx;
}

static void test_measured_and_remembered(void **state)
{
    fixture f;
    hth_pairs p, q;
    memory_cache memory = {.puts = 0};
    hth_timing_cache cache = {.get = cache_get, .put = cache_put, .ctx = &memory};
    uint64_t none = 0;
    graph_open(&f);
    hth_thread_delay_inject(delay, &none);
    assert_ok(hth_pairs_measure(&f.device, f.graph, &cache, false, NULL, &p));
    assert_false(p.disturbed);
    for (int a = 0; a < HTH_PAIR_CLASSES; a++) {
        bool there = a == HTH_PAIR_CONVOLUTION || a == HTH_PAIR_ELEMENTWISE || a == HTH_PAIR_COPY ||
                     a == HTH_PAIR_REDUCTION;
        assert_int_equal(p.there[a], there);
        assert_int_equal(p.alone_us[a] > 0, there);
        for (int b = 0; b < HTH_PAIR_CLASSES; b++) {
            assert_int_equal(p.together_us[a][b] > 0, there && p.there[b]);
            assert_true(p.together_us[a][b] == p.together_us[b][a]);
        }
    }
    assert_int_equal(p.node[HTH_PAIR_CONVOLUTION], 1); // the larger one
    assert_int_equal(p.node[HTH_PAIR_COPY], -1);
    assert_int_equal(memory.puts, 1);
    assert_ok(hth_pairs_measure(&f.device, f.graph, &cache, false, NULL, &q));
    assert_int_equal(memory.puts, 1); // read, and to a tenth of a microsecond the same
    assert_float_equal(q.together_us[HTH_PAIR_COPY][HTH_PAIR_CONVOLUTION],
                       p.together_us[HTH_PAIR_COPY][HTH_PAIR_CONVOLUTION], 0.1);
    assert_ok(hth_pairs_measure(&f.device, f.graph, &cache, true, NULL, &q));
    assert_int_equal(memory.puts, 2);
    snprintf(memory.value, sizeof memory.value, "1.0 2.0 damaged");
    assert_ok(hth_pairs_measure(&f.device, f.graph, &cache, false, NULL, &q));
    assert_int_equal(memory.puts, 3);
    snprintf(f.device.props.fingerprint, sizeof f.device.props.fingerprint, "another machine");
    assert_ok(hth_pairs_measure(&f.device, f.graph, &cache, false, NULL, &q));
    assert_int_equal(memory.puts, 4);
    hth_thread_delay_inject(NULL, NULL);
    fixture_close(&f);
}

static void test_disturbed_is_not_remembered(void **state)
{
    fixture f;
    hth_pairs p;
    memory_cache memory = {.puts = 0};
    uint64_t step_ns = (uint64_t)60 * 1000000000u;
    hth_timing_cache cache = {.get = cache_get, .put = cache_put, .ctx = &memory};
    graph_open(&f);
    hth_thread_delay_inject(delay, &step_ns);
    assert_ok(hth_pairs_measure(&f.device, f.graph, &cache, false, NULL, &p));
    assert_true(p.disturbed);
    assert_int_equal(memory.puts, 0);
    hth_thread_delay_inject(NULL, NULL);
    fixture_close(&f);
}

static void test_factor(void **state)
{
    hth_pairs p = {.alone_us = {[HTH_PAIR_CONVOLUTION] = 10, [HTH_PAIR_COPY] = 4}};
    p.together_us[HTH_PAIR_CONVOLUTION][HTH_PAIR_COPY] = 10; // the copy costs nothing
    assert_float_equal(hth_pairs_oef(&p, HTH_PAIR_CONVOLUTION, HTH_PAIR_COPY), 1, 1e-12);
    p.together_us[HTH_PAIR_CONVOLUTION][HTH_PAIR_COPY] = 14; // as one after the other
    assert_float_equal(hth_pairs_oef(&p, HTH_PAIR_CONVOLUTION, HTH_PAIR_COPY), 0, 1e-12);
    assert_int_equal(hth_pair_class_of(HTH_OP_MAT_MUL), HTH_PAIR_PRODUCT);
    assert_int_equal(hth_pair_class_of(HTH_OP_LAYER_NORMALIZATION), HTH_PAIR_NORM);
    assert_int_equal(hth_pair_class_of(HTH_OP_TRANSPOSE), HTH_PAIR_CLASSES);
    assert_string_equal(hth_pair_class_name(HTH_PAIR_ELEMENTWISE), "element-wise");
}

// All works take about as long as the longest, whatever another program did to a single run.
static void test_runs(void **state)
{
    bool there[HTH_PAIR_CLASSES] = {false};
    double us[HTH_PAIR_CLASSES][HTH_PAIR_TRIES];
    int runs[HTH_PAIR_CLASSES];
    for (int c = 0; c < HTH_PAIR_CLASSES; c++) {
        for (int i = 0; i < HTH_PAIR_TRIES; i++) {
            us[c][i] = i == c % HTH_PAIR_TRIES ? 100 : 9000;
        }
    }
    there[HTH_PAIR_NORM] = there[HTH_PAIR_COPY] = true;
    hth_pairs_runs(there, us, runs);
    assert_int_equal(runs[HTH_PAIR_NORM], 40); // 4 ms at least
    assert_int_equal(runs[HTH_PAIR_COPY], 40);
    for (int i = 0; i < HTH_PAIR_TRIES; i++) {
        us[HTH_PAIR_PRODUCT][i] = 28000;
    }
    hth_pairs_runs(there, us, runs);
    assert_int_equal(runs[HTH_PAIR_NORM], 40); // there is no product
    there[HTH_PAIR_PRODUCT] = true;
    hth_pairs_runs(there, us, runs);
    assert_int_equal(runs[HTH_PAIR_PRODUCT], 1);
    assert_int_equal(runs[HTH_PAIR_NORM], 280);
    us[HTH_PAIR_NORM][0] = 0; // too short for the clock
    hth_pairs_runs(there, us, runs);
    assert_in_range(runs[HTH_PAIR_NORM], 281, 1000000);
}

static void test_refused(void **state)
{
    fixture f;
    hth_pairs p;
    graph_open(&f);
    f.device.props.n_threads = 1;
    assert_err(hth_pairs_measure(&f.device, f.graph, NULL, false, NULL, &p), HTH_ENOTSUP,
               "cpu:0: pairs are measured on CPU devices with two threads or more");
    f.device.props.n_threads = 2;
    f.device.props.inline_compute = false;
    assert_err(hth_pairs_measure(&f.device, f.graph, NULL, false, NULL, &p), HTH_ENOTSUP,
               "CPU devices");
    fixture_close(&f);
}

static void test_no_memory(void **state)
{
    fixture f;
    hth_pairs p;
    graph_open(&f);
    FAULT_LOOP(hth_pairs_measure(&f.device, f.graph, NULL, false, NULL, &p));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured_and_remembered),
                                       cmocka_unit_test(test_disturbed_is_not_remembered),
                                       cmocka_unit_test(test_factor),
                                       cmocka_unit_test(test_runs),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
