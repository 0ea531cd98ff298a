// SPDX-License-Identifier: Apache-2.0
// What a step's nodes find in the caches: a chain whose tensors are small, large, read again at
// once, read again late, overwritten. And that measuring in such a state runs in place where the
// step does, with inputs as they were.
#include "convsel/cache_model.h"

#include "base/alloc.h"
#include "convsel/bench.h"
#include "convsel/convsel.h"
#include "kernels/cpu/fixture.h"

#define MIB ((int64_t)1 << 20)

// x -> Relu a -> Relu b -> .. -> Relu `n`, then Add of the last and of a; each of `mib` MiB.
static hth_cache_model chain(fixture *f, int n, int64_t mib, const int *replaces)
{
    hth_cache_model h;
    fixture_open(f, 3);
    hth_shape s = SHAPE(mib, MIB / 4);
    int v[16] = {fixture_value(f, s)};
    f->graph->values[v[0]].is_input = true;
    for (int i = 1; i <= n; i++) {
        v[i] = fixture_value(f, s);
        fixture_node(f, HTH_OP_RELU, &v[i - 1], 1, &v[i], 1);
    }
    int in[2] = {v[n], v[1]}, out = fixture_value(f, s);
    fixture_node(f, HTH_OP_ADD, in, 2, &out, 1);
    f->device.props.core_cache_bytes = 2 * MIB;
    f->device.props.cache_bytes = 16 * MIB;
    assert_int_equal(hth_cache_model_make(&f->device.props, f->graph, replaces, &h), HTH_OK);
    return h;
}

static const char *text(const hth_cache_model *model, const fixture *f, int node)
{
    return hth_cache_model_text(model, f->graph, &f->graph->nodes[node]);
}

static void ages(void **state)
{
    (void)state;
    fixture f;
    hth_cache_model h =
        chain(&f, 4, 1, NULL); // 5 MiB of outputs: all that is old is in the shared cache
    assert_string_equal(text(&h, &f, 0) + 1, "1>n");
    assert_string_equal(text(&h, &f, 1) + 1, "0>n");  // node 0 has just written it
    assert_string_equal(text(&h, &f, 2) + 1, "a>n");  // .. and nobody reads it afterwards
    assert_string_equal(text(&h, &f, 4) + 1, "ab>n"); // a was read 4.5 MiB ago
    assert_int_equal(h.core_bytes, 4 * MIB);
    assert_int_equal(h.sweep_bytes, 5 * MIB);
    hth_cache_model_fini(&h);
    fixture_close(&f);
    h = chain(&f, 4, 6, NULL); // 30 MiB: x was read 30 MiB ago, a 27 MiB
    assert_string_equal(text(&h, &f, 0) + 1, "2>n");
    assert_string_equal(text(&h, &f, 4) + 1, "bc>n");
    assert_int_equal(h.sweep_bytes, 24 * MIB); // one and a half of the cache
    hth_cache_model_fini(&h);
    fixture_close(&f);
    h = chain(&f, 4, 8, NULL); // a producer's half and a consumer's are the whole cache
    assert_string_equal(text(&h, &f, 2) + 1, "c>n");
    hth_cache_model_fini(&h);
    fixture_close(&f);
}

static void places_taken_over(void **state)
{
    (void)state;
    fixture f;
    int replaces[16];
    memset(replaces, -1, sizeof replaces);
    replaces[5] = 1; // the sum takes a's place
    hth_cache_model h = chain(&f, 4, 6, replaces);
    assert_string_equal(text(&h, &f, 4) + 1, "bc>B");
    hth_cache_model_fini(&h);
    fixture_close(&f);
}

static void levels(void **state)
{
    (void)state;
    bool dies;
    assert_int_equal(hth_cache_model_level('1', &dies), 1);
    assert_false(dies);
    assert_int_equal(hth_cache_model_level('c', &dies), 2);
    assert_true(dies);
    assert_int_equal(hth_cache_model_level('-', &dies), -1);
    assert_false(dies);
}

// A device of unknown caches is measured as before; every allocation may fail.
static void nothing_known_nothing_left(void **state)
{
    (void)state;
    fixture f;
    hth_cache_model h = chain(&f, 3, 1, NULL);
    hth_cache_model_fini(&h);
    int64_t live = hth_alloc_live();
    for (uint64_t nth = 1;; nth++) {
        hth_fault_alloc(nth);
        hth_err err = hth_cache_model_make(&f.device.props, f.graph, NULL, &h);
        hth_fault_alloc(0);
        hth_cache_model_fini(&h);
        assert_int_equal(hth_alloc_live(), live);
        if (err == HTH_OK) {
            break;
        }
        assert_int_equal(err, HTH_ENOMEM);
    }
    f.device.props.cache_bytes = 0;
    assert_int_equal(hth_cache_model_make(&f.device.props, f.graph, NULL, &h), HTH_OK);
    assert_null(text(&h, &f, 0));
    hth_cache_model_fini(&h);
    assert_null(hth_cache_model_text(NULL, f.graph, &f.graph->nodes[0]));
    fixture_close(&f);
}

// Equal nodes in different situations have keys of their own; all are measured.
static void measured_in_place(void **state)
{
    (void)state;
    fixture f;
    hth_cache_model h = chain(&f, 4, 1, NULL);
    char key[5][HTH_CONVSEL_KEY];
    for (int i = 0; i < 5; i++) {
        const hth_node *n = &f.graph->nodes[i];
        hth_choice list[4];
        int count;
        hth_convsel_key(&f.device, f.graph, n, &h, key[i], sizeof key[i]);
        assert_int_equal(hth_convsel_measure(&f.device, f.graph, n, &h, NULL, list, 4, &count),
                         HTH_OK);
        assert_int_equal(count, 1);
        assert_true(list[0].time_us > 0);
    }
    assert_string_not_equal(key[0], key[1]);
    assert_string_not_equal(key[1], key[2]);
    assert_string_equal(key[2], key[3]);
    hth_cache_model_fini(&h);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ages),
        cmocka_unit_test(places_taken_over),
        cmocka_unit_test(levels),
        cmocka_unit_test(nothing_known_nothing_left),
        cmocka_unit_test(measured_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
