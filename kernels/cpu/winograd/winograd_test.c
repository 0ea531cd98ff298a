// SPDX-License-Identifier: Apache-2.0
// Winograd's convolutions against the reference: 2,000 random shapes in the three directions, of
// every tile size, by every instruction set that the processor has, with workspaces from too small
// to ample, filters constant and computed, groups, paddings and post ops. One shape in a hundred
// has enough tiles for several chunks.
#include "kernels/cpu/fixture.h"
#include "device/cpu/team.h"
#include "kernels/cpu/winograd/winograd.h"
#include "kernels/cpu/winograd/winograd_filter.h"

#define SHAPES 2000

// Largest error relative to the largest output; outputs may be few, hence small.
static const double tolerance[] = {4e-6, 2e-5, 1e-4};

typedef struct wino_case {
    hth_op op;
    int pairs, isa;
    int64_t batch, groups, ins, outs, h, w, pad[4];
    bool constant, bias, sum, post, big;
} wino_case;

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*seed >> 33) % n;
}

static wino_case case_draw(uint64_t *seed, int i)
{
    static const hth_op ops[] = {HTH_OP_CONV, HTH_OP_CONV_GRAD_DATA, HTH_OP_CONV_GRAD_FILTER};
    wino_case c = {.op = ops[i % 3], .pairs = i / 3 % 3 + 1, .isa = i / 9 % 3};
    c.big = i % 100 == 99;
    c.batch = 1 + draw(seed, 3);
    c.groups = draw(seed, 3) > 0 ? 1 : 1 + draw(seed, 6);
    c.ins = 1 + draw(seed, c.groups > 1 ? 20 : 40);
    c.outs = 1 + draw(seed, c.groups > 1 ? 20 : 70);
    c.h = 1 + draw(seed, c.big ? 50 : 14);
    c.w = 1 + draw(seed, c.big ? 50 : 14);
    for (int k = 0; k < 4; k++) {
        c.pad[k] = draw(seed, 3) > 0 ? 1 : draw(seed, 4);
    }
    while (c.h + c.pad[0] + c.pad[2] < 3) {
        c.h++;
    }
    while (c.w + c.pad[1] + c.pad[3] < 3) {
        c.w++;
    }
    c.constant = draw(seed, 2) == 0;
    c.bias = draw(seed, 2) == 0;
    c.sum = draw(seed, 3) == 0;
    c.post = draw(seed, 2) == 0;
    return c;
}

static void case_posts(fixture *f, const wino_case *c, int vy, int vx, hth_layout layout)
{
    hth_node *n = &f->graph->nodes[f->node];
    int of = c->op == HTH_OP_CONV ? vy : vx;
    if (c->op == HTH_OP_CONV && c->sum) {
        int add = fixture_value(f, f->graph->values[of].shape);
        f->graph->values[add].layout = layout;
        assert_int_equal(hth_node_add_input(n, add), HTH_OK);
        n->post[n->n_post++] = (hth_post_op){HTH_OP_ADD, n->n_inputs - 1, 0, 0};
    }
    if (c->op == HTH_OP_CONV && c->post) {
        n->post[n->n_post++] = (hth_post_op){HTH_OP_CLIP, -1, -0.5F, 6};
    }
    if (c->op == HTH_OP_CONV_GRAD_DATA && c->post) {
        int y = fixture_value(f, f->graph->values[of].shape);
        f->graph->values[y].layout = layout;
        assert_int_equal(hth_node_add_input(n, y), HTH_OK);
        n->post[n->n_post++] = (hth_post_op){HTH_OP_RELU_GRAD, 2, -0.1F, 0.8F};
    }
}

static void case_open(fixture *f, const wino_case *c, uint64_t seed)
{
    hth_shape x = SHAPE(c->batch, c->ins * c->groups, c->h, c->w);
    hth_shape y = SHAPE(c->batch, c->outs * c->groups, c->h + c->pad[0] + c->pad[2] - 2,
                        c->w + c->pad[1] + c->pad[3] - 2);
    hth_shape w = SHAPE(c->outs * c->groups, c->ins, 3, 3);
    fixture_open(f, seed);
    f->device.props.vector_bytes = 64 >> c->isa;
    hth_layout l = c->isa == 0 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
    bool forward = c->op == HTH_OP_CONV, filter = c->op == HTH_OP_CONV_GRAD_FILTER;
    int vx = fixture_value(f, x), vy = fixture_value(f, y);
    int vw = forward && c->constant ? fixture_const(f, w) : fixture_value(f, w);
    int vb = c->bias ? fixture_value(f, SHAPE(c->outs * c->groups)) : -1;
    int in[3] = {forward || filter ? vx : vy, filter ? vy : vw, vb};
    int grad = filter ? vw : vx, out[2] = {forward ? vy : grad, vb};
    hth_node *n = fixture_node(f, c->op, in, forward ? 3 : 2, out, filter && c->bias ? 2 : 1);
    assert_int_equal(hth_node_set_int(n, "group", c->groups), HTH_OK);
    assert_int_equal(hth_node_set_ints(n, "pads", c->pad, 4), HTH_OK);
    f->graph->values[vx].layout = f->graph->values[vy].layout = l;
    case_posts(f, c, vy, vx, l);
}

static const char *const isa_names[] = {"avx512", "avx2", "sse2"};

// Limits to instruction set `isa`, false: the processor lacks it.
static bool limit_to(int isa)
{
    static const int bytes[] = {64, 32, 16};
    assert_int_equal(hth_isa_limit(isa_names[isa]), HTH_OK);
    return hth_isa_bytes() == bytes[isa];
}

static void random_shapes(void **state)
{
    (void)state;
    static const char *const more[] = {"", ":1M", ":256K", ":32K", ":run", ":512K:run", ":64K:run"};
    uint64_t seed = 20261121;
    double worst[3] = {0};
    int skipped = 0;
    for (int i = 0; i < SHAPES; i++) {
        wino_case c = case_draw(&seed, i);
        uint32_t how = draw(&seed, c.op == HTH_OP_CONV_GRAD_FILTER ? 4 : 7);
        int threads = 1 + (int)draw(&seed, 3);
        char name[64];
        fixture f;
        case_open(&f, &c, (uint64_t)i);
        if (!limit_to(c.isa)) {
            skipped++;
            fixture_close(&f);
            continue;
        }
        f.device.props.n_threads = threads;
        snprintf(name, sizeof name, "winograd_%dx%d:%s%s", 2 * c.pairs, 2 * c.pairs,
                 isa_names[c.isa], more[how]);
        fixture_check(&f, name, draw(&seed, 2) == 0, tolerance[c.pairs - 1]);
        worst[c.pairs - 1] = fmax(worst[c.pairs - 1], f.error);
        fixture_close(&f);
    }
    assert_int_equal(hth_isa_limit(NULL), HTH_OK);
    print_message("largest errors: 2x2 %.1e, 4x4 %.1e, 6x6 %.1e; %d shapes skipped\n", worst[0],
                  worst[1], worst[2], skipped);
}

// A name that says less workspace needs less, down to what the layer cannot do without.
static void workspace_is_a_dial(void **state)
{
    (void)state;
    static const hth_op ops[] = {HTH_OP_CONV, HTH_OP_CONV_GRAD_DATA, HTH_OP_CONV_GRAD_FILTER};
    for (int i = 0; i < 9; i++) {
        int isa = i / 3;
        wino_case c = {.op = ops[i % 3],
                       .isa = isa,
                       .batch = 16,
                       .groups = 1,
                       .ins = 64,
                       .outs = 64,
                       .h = 112,
                       .w = 112,
                       .pad = {1, 1, 1, 1},
                       .constant = true};
        char names[16][HTH_WINO_NAME];
        fixture f;
        case_open(&f, &c, 1);
        if (!limit_to(isa)) {
            fixture_close(&f);
            continue;
        }
        const hth_node *n = &f.graph->nodes[f.node];
        int count = cpu_winograd_names(&f.device, f.graph, n, names, 16), points = 0;
        size_t before = SIZE_MAX;
        for (int k = 0; k < count; k++) {
            hth_kernel *kernel;
            assert_int_equal(cpu_winograd_prepare(&f.device, f.graph, n, names[k], &kernel),
                             HTH_OK);
            bool dial = strncmp(names[k], "winograd_4x4", 12) == 0 &&
                        strstr(names[k], "run") == NULL && strstr(names[k], "16M") == NULL;
            if (dial) {
                assert_true(kernel->workspace_bytes <= before);
                points += kernel->workspace_bytes < before;
                before = kernel->workspace_bytes;
            }
            assert_true(kernel->workspace_bytes <= 17 << 20);
            hth_kernel_close(kernel);
        }
        assert_true(before <= 3 << 19);
        assert_true(points >= 2);
        fixture_close(&f);
    }
    assert_int_equal(hth_isa_limit(NULL), HTH_OK);
}

static void refuses_what_it_cannot(void **state)
{
    (void)state;
    static const char *const wrong[] = {"winograd_4x4",
                                        "winograd_3x3:sse2",
                                        "winograd_4x2:sse2",
                                        "winograd_4x4:sse2:",
                                        "winograd_4x4:sse2:0M",
                                        "winograd_4x4:sse2:4G",
                                        "winograd_4x4:sse2:4M:run:x",
                                        "jit:sse41"};
    wino_case c = {.op = HTH_OP_CONV,
                   .isa = 2,
                   .batch = 1,
                   .groups = 1,
                   .ins = 8,
                   .outs = 8,
                   .h = 9,
                   .w = 9,
                   .pad = {1, 1, 1, 1}};
    fixture f;
    hth_kernel *k;
    case_open(&f, &c, 3);
    assert_true(limit_to(2));
    hth_node *n = &f.graph->nodes[f.node];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(cpu_winograd_prepare(&f.device, f.graph, n, wrong[i], &k), HTH_ENOTSUP);
    }
    fixture_faults(&f, "winograd_4x4:sse2");
    int64_t two[2] = {2, 2};
    assert_int_equal(hth_node_set_ints(n, "dilations", two, 2), HTH_OK);
    assert_int_equal(cpu_winograd_prepare(&f.device, f.graph, n, "winograd_4x4:sse2", &k),
                     HTH_ENOTSUP);
    fixture_close(&f);
    case_open(&f, &c, 4);
    n = &f.graph->nodes[f.node];
    assert_int_equal(hth_node_set_ints(n, "strides", two, 2), HTH_OK);
    assert_int_equal(cpu_winograd_prepare(&f.device, f.graph, n, "winograd_4x4:sse2", &k),
                     HTH_ENOTSUP);
    fixture_close(&f);
    assert_int_equal(hth_isa_limit(NULL), HTH_OK);
}

// Threads share a panel's inputs and the groups' panels; every byte is written, padding included.
static void threads_make_the_same_filters(void **state)
{
    (void)state;
    const hth_wino_isa *isa = &hth_wino_sse2;
    for (int i = 0; i < 3 * HTH_WINO_PAIRS; i++) {
        const hth_wino_filter f = {.out = (size_t)(5 + 14 * (i / 3)),
                                   .in = (size_t)(3 + 10 * i),
                                   .groups = (size_t)(1 + i % 2),
                                   .merge = 1,
                                   .back = i % 4 == 3};
        int pairs = i % HTH_WINO_PAIRS + 1;
        size_t n = f.groups * f.out * f.in * 9;
        size_t bytes = f.groups * hth_wino_filter_floats(isa, pairs, &f) * sizeof(float);
        float *w = fixture_buffer(n * sizeof *w), *u[3];
        for (size_t k = 0; k < n; k++) {
            w[k] = (float)(k * 37 % 101) / 101 - 0.5F;
        }
        for (int t = 0; t < 3; t++) {
            u[t] = fixture_buffer(bytes);
            memset(u[t], t, bytes);
            hth_team_set(t + 1);
            hth_wino_filter_pack(isa, pairs, &f, w, u[t]);
            assert_memory_equal(u[t], u[0], bytes);
        }
        hth_free(w);
        for (int t = 0; t < 3; t++) {
            hth_free(u[t]);
        }
    }
    hth_team_set(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(workspace_is_a_dial),
        cmocka_unit_test(refuses_what_it_cannot),
        cmocka_unit_test(threads_make_the_same_filters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
