// SPDX-License-Identifier: Apache-2.0
// The choices of a convolution: measured with a clock of the test's own, remembered in a cache of
// the test's own, ordered and put on the front; the sampled reference against the reference
// kernels.
#include "convsel/convsel.h"

#include "base/clock.h"
#include "base/test.h"
#include "base/thread.h"
#include "convsel/bench.h"
#include "kernels/cpu/fixture.h"

typedef struct layer {
    int64_t in, out, groups, size, kernel, stride, pad;
    bool transposed;
} layer;

static hth_node *layer_open(fixture *f, const layer *l, hth_layout layout)
{
    int64_t out = l->transposed ? (l->size - 1) * l->stride + l->kernel - 2 * l->pad
                                : (l->size + 2 * l->pad - l->kernel) / l->stride + 1;
    hth_shape w = SHAPE(l->out, l->in / l->groups, l->kernel, l->kernel);
    fixture_open(f, 77);
    if (l->transposed) {
        w.dim[0] = l->in;
        w.dim[1] = l->out / l->groups;
    }
    int in[3] = {fixture_value(f, SHAPE(2, l->in, l->size, l->size)), fixture_const(f, w),
                 fixture_const(f, SHAPE(l->out))};
    int y = fixture_value(f, SHAPE(2, l->out, out, out));
    hth_node *n =
        fixture_node(f, l->transposed ? HTH_OP_CONV_TRANSPOSE : HTH_OP_CONV, in, 3, &y, 1);
    hth_node_set_int(n, "group", l->groups);
    hth_node_set_ints(n, "strides", (int64_t[]){l->stride, l->stride}, 2);
    hth_node_set_ints(n, "pads", (int64_t[]){l->pad, l->pad, l->pad, l->pad}, 4);
    f->graph->values[in[0]].layout = f->graph->values[y].layout = layout;
    snprintf(f->device.props.fingerprint, sizeof f->device.props.fingerprint, "test machine");
    return n;
}

static uint64_t tick(void *ctx)
{
    uint64_t *now = ctx;
    return *now += 1000000;
}

typedef struct memory_cache {
    char key[HTH_CONVSEL_KEY], value[4096];
    int puts;
} memory_cache;

static hth_err cache_get(void *ctx, const char *key, char *value, size_t cap)
{
    memory_cache *c = ctx;
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

static void front_is_what_nothing_beats(void **state)
{
    (void)state;
    hth_choice list[7] = {
        {.time_us = 1, .workspace_bytes = 100, .error = 0.5}, // wrong result
        {.time_us = 2, .workspace_bytes = 90, .error = 1e-5}, // fastest
        {.time_us = 3, .workspace_bytes = 90, .error = 1e-6}, // slower, no smaller
        {.time_us = 4, .workspace_bytes = 10, .error = -1},   // not measured counts as good
        {.time_us = 5, .workspace_bytes = 50, .error = 1e-6},
        {.time_us = 6, .workspace_bytes = 0, .error = 1e-6},
        {.time_us = 7, .workspace_bytes = 20, .error = 1e-6}, // fewer resident bytes than any
    };
    static const bool want[7] = {false, true, false, true, false, true, true};
    for (int i = 0; i < 6; i++) {
        list[i].resident_bytes = 1000;
    }
    hth_convsel_front(list, 7, 1e-3);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(list[i].front, want[i]);
    }
    list[1].error = NAN;
    hth_convsel_front(list, 6, 1e-3);
    assert_false(list[1].front);
    assert_true(list[2].front);
}

static void samples_match_the_reference(void **state)
{
    (void)state;
    static const layer list[] = {{3, 8, 1, 9, 3, 2, 1, false},    {16, 24, 1, 8, 3, 1, 1, false},
                                 {18, 18, 18, 7, 5, 1, 2, false}, {12, 8, 4, 7, 3, 1, 0, false},
                                 {20, 6, 1, 5, 3, 2, 1, true},    {8, 12, 4, 5, 2, 2, 0, true}};
    for (size_t i = 0; i < 2 * sizeof list / sizeof list[0]; i++) {
        fixture f;
        hth_node *n = layer_open(&f, &list[i / 2], i % 2 == 0 ? HTH_LAYOUT_PLAIN : HTH_LAYOUT_C16);
        const hth_value *x = &f.graph->values[n->inputs[0]], *y = &f.graph->values[n->outputs[0]];
        int64_t total = hth_shape_elements(&y->shape);
        float *plain = fixture_fill(&f, &x->shape), *placed = fixture_place(x, plain);
        float *want = hth_calloc((size_t)total, sizeof *want);
        const float *w = f.graph->values[n->inputs[1]].constant->data;
        const float *bias = f.graph->values[n->inputs[2]].constant->data;
        hth_tensor in[3] = {{HTH_DT_F32, HTH_LAYOUT_PLAIN, x->shape, plain,
                             (size_t)hth_shape_elements(&x->shape) * sizeof *plain}};
        for (int k = 1; k < 3; k++) {
            const hth_const *c = f.graph->values[n->inputs[k]].constant;
            in[k] = (hth_tensor){HTH_DT_F32, HTH_LAYOUT_PLAIN, c->shape, (void *)(uintptr_t)c->data,
                                 c->bytes};
        }
        hth_tensor out = {HTH_DT_F32, HTH_LAYOUT_PLAIN, y->shape, want,
                          (size_t)total * sizeof *want};
        if (hth_ref_eval(NULL, f.graph, n, in, &out) != HTH_OK) {
            fail_msg("%s", hth_err_detail());
        }
        for (int64_t k = 0; k < total; k++) {
            double got;
            assert_int_equal(hth_sample_conv(f.graph, n, placed, w, bias, &k, 1, &got), HTH_OK);
            assert_true(fabs(got - want[k]) < 1e-4);
        }
        hth_free(plain);
        hth_free(placed);
        hth_free(want);
        fixture_close(&f);
    }
}

static void choices_are_measured(void **state)
{
    (void)state;
    layer l = {64, 64, 1, 28, 3, 1, 1, false};
    fixture f;
    hth_node *n = layer_open(&f, &l, HTH_LAYOUT_PLAIN);
    bool any;
    const hth_fuse_oracle *o = hth_kernel_oracle(&f.device);
    hth_layout blocked = o->layout(o->ctx, f.graph, n, &any);
    f.graph->values[n->inputs[0]].layout = f.graph->values[n->outputs[0]].layout = blocked;
    n->post[n->n_post++] = (hth_post_op){HTH_OP_SWISH, -1, 1, 0};
    hth_choice list[HTH_MAX_CHOICES];
    int count, front = 0;
    assert_int_equal(
        hth_convsel_measure(&f.device, f.graph, n, NULL, NULL, list, HTH_MAX_CHOICES, &count),
        HTH_OK);
    assert_true(count >= 1);
    for (int i = 0; i < count; i++) {
        assert_true(list[i].time_us > 0);
        assert_true(i == 0 || list[i - 1].time_us <= list[i].time_us);
        assert_true(list[i].error >= 0 &&
                    list[i].error < (strstr(list[i].name, "wino") ? 1e-3 : 1e-5));
        front += list[i].front;
    }
    assert_true(list[0].front);
    assert_true(front >= 1);
    fixture_close(&f);
}

static void median_by_the_clock(void **state)
{
    (void)state;
    layer l = {16, 16, 1, 8, 3, 1, 1, false};
    fixture f;
    hth_choice list[8];
    int count;
    uint64_t now = 0;
    hth_node *n = layer_open(&f, &l, HTH_LAYOUT_PLAIN);
    hth_clock_inject(tick, &now); // every reading is 1 ms later
    assert_int_equal(hth_convsel_measure(&f.device, f.graph, n, NULL, NULL, list, 8, &count),
                     HTH_OK);
    hth_clock_inject(NULL, NULL);
    assert_true(list[0].time_us == 1000);
    for (int i = 1; i < count; i++) { // a tie that needs more memory is told a thousandth slower
        assert_true(list[i].time_us >= 1000 && list[i].time_us <= 1001);
    }
    fixture_close(&f);
}

static hth_err cache_put_full(void *ctx, const char *key, const char *value)
{
    ((memory_cache *)ctx)->puts++;
    return hth_fail(HTH_EIO, "no space left on device");
}

// A full disk, or a store that may only be read: what cannot be kept is measured again.
static void full_cache_costs_nothing_else(void **state)
{
    layer l = {16, 16, 1, 8, 3, 1, 1, false};
    memory_cache memory = {.puts = 0};
    hth_timing_cache cache = {.get = cache_get, .put = cache_put_full, .ctx = &memory};
    fixture f;
    hth_choice list[HTH_MAX_CHOICES];
    int n_list = 0;
    hth_node *n = layer_open(&f, &l, HTH_LAYOUT_PLAIN);
    assert_int_equal(
        hth_convsel_measure(&f.device, f.graph, n, NULL, &cache, list, HTH_MAX_CHOICES, &n_list),
        HTH_OK);
    assert_int_equal(memory.puts, 1);
    assert_true(n_list > 0 && list[0].time_us > 0);
    fixture_close(&f);
}

static void cache_answers_the_second_time(void **state)
{
    (void)state;
    layer l = {16, 16, 1, 8, 3, 1, 1, false};
    memory_cache memory = {.puts = 0};
    hth_timing_cache cache = {.get = cache_get, .put = cache_put, .ctx = &memory};
    fixture f;
    hth_choice first[HTH_MAX_CHOICES], second[HTH_MAX_CHOICES];
    int n_first, n_second;
    uint64_t now = 0;
    hth_node *n = layer_open(&f, &l, HTH_LAYOUT_PLAIN);
    assert_int_equal(
        hth_convsel_measure(&f.device, f.graph, n, NULL, &cache, first, HTH_MAX_CHOICES, &n_first),
        HTH_OK);
    assert_int_equal(memory.puts, 1);
    hth_clock_inject(tick, &now);
    assert_int_equal(hth_convsel_measure(&f.device, f.graph, n, NULL, &cache, second,
                                         HTH_MAX_CHOICES, &n_second),
                     HTH_OK);
    assert_true(now == 0); // nothing was timed
    assert_int_equal(n_first, n_second);
    for (int i = 0; i < n_first; i++) {
        assert_string_equal(first[i].name, second[i].name);
        assert_true(first[i].workspace_bytes == second[i].workspace_bytes &&
                    first[i].front == second[i].front &&
                    first[i].resident_bytes == second[i].resident_bytes &&
                    first[i].rms <= first[i].error);
        assert_true(fabs(first[i].time_us - second[i].time_us) < 1e-2);
    }
    static const char *const bad[] = {"",
                                      "x",
                                      "name 12 nonsense",
                                      "name 1 1 -5 0 0 1 0 1\n",
                                      "name 1 1 5 0 0 0 0 1\n",
                                      "name 1 1 inf 0 0 1 0 1\n",
                                      "name 1 1 2e12 0 0 1 0 1\n",
                                      "name -1 1 5 0 0 1 0 1\n",
                                      "name 1 -1 5 0 0 1 0 1\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(memory.value, sizeof memory.value, "%s", bad[i]);
        assert_int_equal(hth_convsel_measure(&f.device, f.graph, n, NULL, &cache, second,
                                             HTH_MAX_CHOICES, &n_second),
                         HTH_OK);
        assert_int_equal(memory.puts, 2 + (int)i); // measured again
        assert_int_equal(n_second, n_first);
    }
    hth_clock_inject(NULL, NULL);
    fixture_close(&f);
}

// Of twice as many samples: twice the times, workspaces of its own, nothing timed, nothing kept.
static void other_samples_are_scaled(void **state)
{
    (void)state;
    layer l = {64, 64, 1, 28, 3, 1, 1, false};
    memory_cache memory = {.puts = 0};
    hth_timing_cache cache = {.get = cache_get, .put = cache_put, .ctx = &memory};
    fixture f, g;
    bool any;
    hth_choice kin[HTH_MAX_CHOICES], list[HTH_MAX_CHOICES], own[HTH_MAX_CHOICES];
    int n_kin, n_list, n_own;
    uint64_t now = 0;
    hth_node *n = layer_open(&f, &l, HTH_LAYOUT_PLAIN);
    const hth_fuse_oracle *o = hth_kernel_oracle(&f.device);
    hth_layout layout = o->layout(o->ctx, f.graph, n, &any);
    hth_node *twice = layer_open(&g, &l, layout);
    f.graph->values[n->inputs[0]].layout = f.graph->values[n->outputs[0]].layout = layout;
    g.graph->values[twice->inputs[0]].shape.dim[0] = 4;
    g.graph->values[twice->outputs[0]].shape.dim[0] = 4;
    assert_err(hth_convsel_scaled(&g.device, g.graph, twice, f.graph, n, NULL, &cache, 2, list,
                                  HTH_MAX_CHOICES, &n_list),
               HTH_ENOENT, "is not measured");
    assert_ok(
        hth_convsel_measure(&f.device, f.graph, n, NULL, &cache, kin, HTH_MAX_CHOICES, &n_kin));
    hth_clock_inject(tick, &now);
    assert_ok(hth_convsel_scaled(&g.device, g.graph, twice, f.graph, n, NULL, &cache, 2, list,
                                 HTH_MAX_CHOICES, &n_list));
    assert_true(now == 0 && memory.puts == 1);
    hth_clock_inject(NULL, NULL);
    assert_ok(hth_kernel_algorithms(&g.device, g.graph, twice, own, HTH_MAX_CHOICES, &n_own));
    assert_true(n_list >= 1 && n_list <= n_kin && strcmp(list[0].name, kin[0].name) == 0);
    for (int i = 0; i < n_list; i++) {
        int k = 0, w = 0;
        while (k < n_kin && strcmp(kin[k].name, list[i].name) != 0) {
            k++;
        }
        while (w < n_own && strcmp(own[w].name, list[i].name) != 0) {
            w++;
        }
        assert_true(k < n_kin && w < n_own);
        assert_float_equal(list[i].time_us, 2 * kin[k].time_us, 1e-2);
        assert_true(list[i].workspace_bytes == own[w].workspace_bytes);
        assert_true(i == 0 || list[i].time_us >= list[i - 1].time_us);
    }
    fixture_close(&f);
    fixture_close(&g);
}

// What others did: time that threads waited for a processor, more at every look.
typedef struct others {
    uint64_t delay_ns, more_ns;
} others;

static uint64_t others_delay(void *ctx)
{
    others *o = ctx;
    return o->delay_ns += o->more_ns;
}

// Measurements that were disturbed, or cannot be, are marked, taken again so often and no more, and
// give way to one that was not.
static void disturbed_is_taken_again(void **state)
{
    (void)state;
    layer l = {16, 16, 1, 8, 3, 1, 1, false};
    memory_cache memory = {.puts = 0};
    hth_timing_cache cache = {.get = cache_get, .put = cache_put, .ctx = &memory};
    fixture f;
    hth_choice list[HTH_MAX_CHOICES], kept[HTH_MAX_CHOICES];
    int n;
    others busy = {.more_ns = (uint64_t)1 << 50};
    hth_node *node = layer_open(&f, &l, HTH_LAYOUT_PLAIN);
    hth_device *d = &f.device;
    hth_thread_delay_inject(others_delay, &busy);
    assert_int_equal(hth_convsel_measure(d, f.graph, node, NULL, &cache, list, HTH_MAX_CHOICES, &n),
                     HTH_OK);
    for (int i = 0; i < n; i++) {
        assert_true(list[i].disturbed);
    }
    assert_true(hth_convsel_known(d, f.graph, node, NULL, &cache)); // better than nothing
    for (int k = 1; k < HTH_CONVSEL_TRIES; k++) {
        assert_true(hth_convsel_disturbed(d, f.graph, node, NULL, &cache));
        assert_int_equal(hth_convsel_again(d, f.graph, node, NULL, &cache), HTH_OK);
        assert_int_equal(memory.puts, 1 + k);
        int m = hth_convsel_alone(&cache, memory.key, kept, HTH_MAX_CHOICES);
        assert_int_equal(m, n);
        assert_true(kept[0].disturbed && kept[0].time_us <= list[0].time_us);
        memcpy(list, kept, sizeof list);
    }
    assert_false(hth_convsel_disturbed(d, f.graph, node, NULL, &cache)); // it stays so
    busy.more_ns = 0;
    char key[HTH_CONVSEL_KEY];
    hth_convsel_key(d, f.graph, node, NULL, key, sizeof key);
    assert_int_equal(hth_convsel_forget(d, f.graph, node, NULL, &cache), HTH_OK);
    assert_int_equal(memory.puts, HTH_CONVSEL_TRIES + 2); // what steps took, too
    snprintf(memory.key, sizeof memory.key, "%s", key);
    assert_false(hth_convsel_known(d, f.graph, node, NULL, &cache));
    static const struct {
        const char *text;
        bool again;
    } remembered[] = {
        {"a 0 0 70.000 0 0 1 0 1\nb 0 0 70.001 0 0 1 0 1\nc 0 0 70.002 0 0 1 0 1\n", false},
        {"a 0 0 70.000 0 0 1 0 1\nb 0 0 75.123 0 0 1 0 1\nc 0 0 75.123 0 0 1 0 1\n", false},
        {"a 0 0 70.000 0 0 1 0 1\nb 0 0 75.123 0 0 1 0 1\nc 0 0 75.123 0 0 1 0 1\n"
         "d 0 0 75.123 0 0 1 0 1\n",
         true},
        {"a 0 0 0.000 0 0 1 0 1\n", true}, // no arithmetic in no time
        {"disturbed 1\na 0 0 70.000 0 0 1 0 1\n", true},
        {"disturbed 4\na 0 0 70.000 0 0 1 0 1\n", false},
        {"disturbed 0\na 0 0 70.000 0 0 1 0 1\n", false}, // nobody writes that
    };
    for (size_t i = 0; i < sizeof remembered / sizeof *remembered; i++) {
        snprintf(memory.value, sizeof memory.value, "%s", remembered[i].text);
        if (hth_convsel_disturbed(d, f.graph, node, NULL, &cache) != remembered[i].again) {
            fail_msg("%s", remembered[i].text);
        }
    }
    // A quiet measurement takes its place, whatever that said.
    snprintf(memory.value, sizeof memory.value, "disturbed 1\na 0 0 0.5 0 0 1 0 1\n");
    for (int k = 0; k < 20 && hth_convsel_disturbed(d, f.graph, node, NULL, &cache); k++) {
        snprintf(memory.value, sizeof memory.value, "disturbed 1\na 0 0 0.5 0 0 1 0 1\n");
        assert_int_equal(hth_convsel_again(d, f.graph, node, NULL, &cache), HTH_OK);
    }
    n = hth_convsel_alone(&cache, memory.key, kept, HTH_MAX_CHOICES);
    assert_true(n > 0 && !kept[0].disturbed && strcmp(kept[0].name, "a") != 0);
    hth_thread_delay_inject(NULL, NULL);
    fixture_close(&f);
}

static void keys_tell_descriptors_apart(void **state)
{
    (void)state;
    layer l = {16, 16, 1, 8, 3, 1, 1, false}, wide = {16, 32, 1, 8, 3, 1, 1, false};
    char key[5][HTH_CONVSEL_KEY], again[HTH_CONVSEL_KEY], tiny[2][80];
    fixture f, other;
    hth_node *n = layer_open(&f, &l, HTH_LAYOUT_PLAIN);
    hth_convsel_key(&f.device, f.graph, n, NULL, key[0], sizeof key[0]);
    n->name[0] = 'N';
    hth_convsel_key(&f.device, f.graph, n, NULL, again, sizeof again);
    assert_string_equal(key[0], again); // names do not matter
    hth_convsel_key(&f.device, f.graph, n, NULL, tiny[0], sizeof tiny[0]);
    n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU, -1, 0, 0};
    hth_convsel_key(&f.device, f.graph, n, NULL, key[1], sizeof key[1]);
    f.graph->values[n->inputs[0]].layout = HTH_LAYOUT_C16;
    hth_convsel_key(&f.device, f.graph, n, NULL, key[2], sizeof key[2]);
    f.device.props.fingerprint[0]++;
    hth_convsel_key(&f.device, f.graph, n, NULL, key[3], sizeof key[3]);
    hth_convsel_key(&f.device, f.graph, n, NULL, tiny[1], sizeof tiny[1]);
    n = layer_open(&other, &wide, HTH_LAYOUT_PLAIN);
    hth_convsel_key(&other.device, other.graph, n, NULL, key[4], sizeof key[4]);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(key[i], key[k]);
        }
    }
    assert_string_not_equal(tiny[0], tiny[1]); // also when cut
    fixture_close(&f);
    fixture_close(&other);
}

// A node with hundreds of inputs, as a clip's scale has them: what comes after them counts, too.
static void long_descriptors_are_told_apart(void **state)
{
    enum { INPUTS = 400 };
    char key[4][HTH_CONVSEL_KEY];
    int in[INPUTS], out;
    fixture f;
    (void)state;
    fixture_open(&f, 1);
    for (int i = 0; i < INPUTS; i++) {
        in[i] = fixture_value(&f, SHAPE(1000 + i, 16));
    }
    out = fixture_value(&f, SHAPE(INPUTS, 16));
    hth_node *n = fixture_node(&f, HTH_OP_CONCAT, in, INPUTS, &out, 1);
    hth_convsel_key(&f.device, f.graph, n, NULL, key[0], sizeof key[0]);
    f.device.props.fingerprint[0]++;
    hth_convsel_key(&f.device, f.graph, n, NULL, key[1], sizeof key[1]);
    f.graph->values[out].shape.dim[1]++;
    hth_convsel_key(&f.device, f.graph, n, NULL, key[2], sizeof key[2]);
    f.graph->values[in[INPUTS - 1]].shape.dim[1]++;
    hth_convsel_key(&f.device, f.graph, n, NULL, key[3], sizeof key[3]);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(key[i], key[k]);
        }
    }
    fixture_close(&f);
}

static void other_operators_have_one_choice(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, 5);
    int x = fixture_value(&f, SHAPE(1, 16, 8, 8)), y = fixture_value(&f, SHAPE(1, 16, 1, 1)), count;
    hth_node *n = fixture_node(&f, HTH_OP_GLOBAL_AVERAGE_POOL, &x, 1, &y, 1);
    hth_choice list[4];
    assert_int_equal(hth_convsel_measure(&f.device, f.graph, n, NULL, NULL, list, 4, &count),
                     HTH_OK);
    assert_int_equal(count, 1);
    assert_string_equal(list[0].name, "default");
    assert_true(list[0].time_us > 0 && list[0].front);
    fixture_close(&f);
}

// All three directions of one layer: each choice computes what the samples say, each has its key.
static void directions(void **state)
{
    (void)state;
    static const hth_op ops[] = {HTH_OP_CONV, HTH_OP_CONV_GRAD_DATA, HTH_OP_CONV_GRAD_FILTER};
    char key[3][HTH_CONVSEL_KEY];
    for (int k = 0; k < 3; k++) {
        fixture f;
        fixture_open(&f, 5);
        int x = fixture_value(&f, SHAPE(4, 48, 14, 14)),
            y = fixture_value(&f, SHAPE(4, 40, 14, 14));
        int w = fixture_value(&f, SHAPE(40, 48, 3, 3));
        int in[3][2] = {{x, w}, {y, w}, {x, y}}, out[3] = {y, x, w};
        hth_node *n = fixture_node(&f, ops[k], in[k], 2, &out[k], 1);
        hth_choice list[HTH_MAX_CHOICES];
        int count;
        hth_node_set_ints(n, "kernel_shape", (int64_t[]){3, 3}, 2);
        hth_node_set_ints(n, "pads", (int64_t[]){1, 1, 1, 1}, 4);
        f.graph->values[x].layout = f.graph->values[y].layout =
            f.device.props.vector_bytes >= 64 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
        assert_true(hth_convsel_has_menu(n->op));
        hth_convsel_key(&f.device, f.graph, n, NULL, key[k], sizeof key[k]);
        assert_int_equal(
            hth_convsel_measure(&f.device, f.graph, n, NULL, NULL, list, HTH_MAX_CHOICES, &count),
            HTH_OK);
        for (int i = 0; i < count; i++) {
            assert_true(list[i].error >= 0 && list[i].error < 1e-4);
            assert_int_equal(list[i].accumulates, k == 2 && list[i].split > 1);
        }
        fixture_close(&f);
    }
    assert_string_not_equal(key[0], key[1]);
    assert_string_not_equal(key[1], key[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(front_is_what_nothing_beats),
        cmocka_unit_test(samples_match_the_reference),
        cmocka_unit_test(choices_are_measured),
        cmocka_unit_test(full_cache_costs_nothing_else),
        cmocka_unit_test(median_by_the_clock),
        cmocka_unit_test(cache_answers_the_second_time),
        cmocka_unit_test(other_samples_are_scaled),
        cmocka_unit_test(disturbed_is_taken_again),
        cmocka_unit_test(keys_tell_descriptors_apart),
        cmocka_unit_test(long_descriptors_are_told_apart),
        cmocka_unit_test(other_operators_have_one_choice),
        cmocka_unit_test(directions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
