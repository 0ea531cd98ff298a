// SPDX-License-Identifier: Apache-2.0
// planner/plan_train_gen.h - training steps of well-known networks as planning problems, for tests
// and benches. Costs are a simple model of a GPU, or of the small devices of POET's authors
// (simulated: arithmetic at a rate, traffic at a bandwidth), not measurements: a GPU's conv menus
// have a slow algorithm without workspace, a faster one with some, and for 3x3 filters a fast one
// with much.
#ifndef HTH_PLANNER_PLAN_TRAIN_GEN_H
#define HTH_PLANNER_PLAN_TRAIN_GEN_H

#include "planner/plan_test.h"
#include "planner/plan_decode.h"
#include "planner/plan_train.h"

#define PG_MAX 16384

typedef struct pg_device {
    double flops, bytes; // per us
    double start_us;     // that every kernel takes besides
    double h2d, d2h;     // bytes a second, to it and from it
    double latency_us;   // of a copy
    bool menu;           // of algorithms for a convolution
} pg_device;

// What a large GPU reaches in fp32.
static const pg_device pg_gpu = {60e6, 1.2e6, 4, 25e9, 25e9, 10, true};

// Patil et al. 2022 (POET) publish these rates of a Cortex-M4F and of a Raspberry Pi's Cortex-A72,
// and of their SD cards. An element-wise operation is one per element, so 8 bytes read or written.
static const pg_device pg_m4 = {6.37, 8 * 6.37, 0, 4.61651e6, 4.44e6, 110, false},
                       pg_a72 = {2e3, 8 * 2e3, 0, 45.5e6, 24.5e6, 12, false};

typedef enum pg_kind { PG_CONV, PG_BN, PG_RELU, PG_POOL, PG_ADD, PG_CONCAT, PG_UP } pg_kind;

typedef struct pg_layer {
    pg_kind kind;
    int in[2]; // values
    int out;   // value
    int k, stride;
    bool depthwise;
    int weight; // tensor
} pg_layer;

typedef struct pg_value {
    int c, h, w;
    int tensor, grad, extra; // of the problem; grad -1: none yet; extra: saved by the forward
} pg_value;

typedef struct pg_net {
    const pg_device *device;
    int batch, n_layers, n_values;
    bool inplace; // ReLU and sums take over their input's buffer going forwards
    pg_layer layer[PG_MAX];
    pg_value value[PG_MAX];
} pg_net;

static inline pg_net *pg_net_new(const pg_device *device, int batch)
{
    pg_net *n = hth_calloc(1, sizeof *n);
    n->device = device;
    n->batch = batch;
    n->inplace = true;
    return n;
}

static inline int pg_value_new(pg_net *net, int c, int h, int w)
{
    net->value[net->n_values] = (pg_value){c, h, w, -1, -1, -1};
    return net->n_values++;
}

static inline int pg_conv(pg_net *net, int x, int c, int k, int stride, bool depthwise)
{
    const pg_value *v = &net->value[x];
    int out = pg_value_new(net, c, (v->h + stride - 1) / stride, (v->w + stride - 1) / stride);
    net->layer[net->n_layers++] = (pg_layer){PG_CONV, {x, -1}, out, k, stride, depthwise, -1};
    return out;
}

static inline int pg_same(pg_net *net, pg_kind kind, int x)
{
    int out = pg_value_new(net, net->value[x].c, net->value[x].h, net->value[x].w);
    net->layer[net->n_layers++] = (pg_layer){kind, {x, -1}, out, 1, 1, false, -1};
    return out;
}

static inline int pg_pool(pg_net *net, int x)
{
    int out =
        pg_value_new(net, net->value[x].c, (net->value[x].h + 1) / 2, (net->value[x].w + 1) / 2);
    net->layer[net->n_layers++] = (pg_layer){PG_POOL, {x, -1}, out, 2, 2, false, -1};
    return out;
}

static inline int pg_up(pg_net *net, int x)
{
    int out = pg_value_new(net, net->value[x].c, net->value[x].h * 2, net->value[x].w * 2);
    net->layer[net->n_layers++] = (pg_layer){PG_UP, {x, -1}, out, 2, 2, false, -1};
    return out;
}

static inline int pg_join(pg_net *net, pg_kind kind, int a, int b)
{
    int c = net->value[a].c + (kind == PG_CONCAT ? net->value[b].c : 0);
    int out = pg_value_new(net, c, net->value[a].h, net->value[a].w);
    net->layer[net->n_layers++] = (pg_layer){kind, {a, b}, out, 1, 1, false, -1};
    return out;
}

static inline int pg_cbr(pg_net *net, int x, int c, int k, int stride)
{
    return pg_same(net, PG_RELU, pg_same(net, PG_BN, pg_conv(net, x, c, k, stride, false)));
}

static inline double pg_size(const pg_net *net, int v)
{
    return 4.0 * net->batch * net->value[v].c * net->value[v].h * net->value[v].w;
}

static inline void pg_menu(hth_problem *problem, int node, const pg_net *net, const pg_layer *layer,
                           int way)
{
    const pg_value *x = &net->value[layer->in[0]], *y = &net->value[layer->out];
    double io = pg_size(net, layer->in[0]) + pg_size(net, layer->out);
    double flops =
        2.0 * net->batch * y->c * y->h * y->w * layer->k * layer->k * (layer->depthwise ? 1 : x->c);
    const pg_device *device = net->device;
    double us = flops / (device->flops * (way ? 0.9 : 1)) + io / device->bytes + device->start_us;
    hth_free(problem->nodes[node].op);
    static const char *const ops[] = {"conv_fwd", "conv_bwd_data", "conv_bwd_filter"};
    problem->nodes[node].op = hth_strdup(ops[way]);
    pt_choice(problem, node, device->menu ? us * 1.35 : us, 0);
    if (!layer->depthwise && device->menu) {
        pt_choice(problem, node, us, (uint64_t)(io / 8));
        if (layer->k == 3 && layer->stride == 1) {
            pt_choice(problem, node, us * 0.5, (uint64_t)(io * 1.2));
            pt_choice(problem, node, us * 0.5 * 1.04 + 8, (uint64_t)(io * 0.6));
            pt_choice(problem, node, us * 0.5 * 1.1 + 24, (uint64_t)(io * 0.3));
        }
    }
}

static inline void pg_traffic(hth_problem *problem, int node, const pg_device *device, double bytes)
{
    problem->nodes[node].recomputable = true;
    if (problem->nodes[node].n_alternatives == 0) {
        pt_choice(problem, node, bytes / device->bytes + device->start_us, 0);
    }
}

static inline double pg_weight_bytes(const pg_net *net, const pg_layer *layer)
{
    int c = net->value[layer->in[0]].c;
    return 4.0 * c * net->value[layer->out].c * layer->k * layer->k / (layer->depthwise ? c : 1);
}

// Gives a node of one output another one.
static inline int pg_second(hth_problem *problem, int node, hth_mem_class cls, uint64_t bytes)
{
    hth_plan_node *n = &problem->nodes[node];
    int out[2] = {n->outputs[0], pt_tensor(problem, cls, bytes, node)};
    hth_free(n->outputs);
    n->outputs = hth_memdup(out, sizeof out);
    n->n_outputs = 2;
    return out[1];
}

static inline void pg_forward(hth_problem *problem, pg_net *net, pg_layer *layer)
{
    pg_value *y = &net->value[layer->out];
    int in[3] = {net->value[layer->in[0]].tensor,
                 layer->in[1] >= 0 ? net->value[layer->in[1]].tensor : -1, -1};
    uint64_t bytes = (uint64_t)pg_size(net, layer->out);
    if (layer->kind == PG_CONV) {
        in[1] = layer->weight =
            pt_tensor(problem, HTH_MEM_STATE, (uint64_t)pg_weight_bytes(net, layer), -1);
    }
    if (layer->kind == PG_BN) { // running statistics
        in[1] = pt_tensor(problem, HTH_MEM_STATE, 8 * (uint64_t)y->c, -1);
    }
    bool inplace = net->inplace && (layer->kind == PG_RELU || layer->kind == PG_ADD);
    y->tensor = pt_node(problem, in, in[1] >= 0 ? 2 : 1, HTH_MEM_ACTIVATION, bytes, inplace);
    int node = problem->n_nodes - 1;
    if (layer->kind == PG_BN) {
        int t = pg_second(problem, node, HTH_MEM_OUTPUT, problem->tensors[in[1]].bytes);
        problem->tensors[t].external = true;
        problem->tensors[t].replaces = in[1] + 1;
    }
    if (layer->kind == PG_CONV) {
        pg_menu(problem, node, net, layer, 0);
    }
    if (layer->kind == PG_POOL) { // the index of the largest
        y->extra = pg_second(problem, node, HTH_MEM_ACTIVATION, bytes / 4);
    }
    pg_traffic(problem, node, net->device, 2.0 * (double)bytes);
}

// Adds `grad` to what value v has already.
static inline void pg_accumulate(hth_problem *problem, pg_net *net, int v, int grad)
{
    pg_value *x = &net->value[v];
    if (x->grad < 0) {
        x->grad = grad;
        return;
    }
    int in[2] = {grad, x->grad};
    x->grad = pt_node(problem, in, 2, HTH_MEM_GRADIENT, (uint64_t)pg_size(net, v), true);
    pg_traffic(problem, problem->n_nodes - 1, net->device, 3 * pg_size(net, v));
}

static inline int pg_grad_node(hth_problem *problem, const pg_net *net, int *in, int n_in, int v,
                               bool inplace)
{
    double bytes = pg_size(net, v);
    int t = pt_node(problem, in, n_in, HTH_MEM_GRADIENT, (uint64_t)bytes, inplace);
    pg_traffic(problem, problem->n_nodes - 1, net->device, 3 * bytes);
    return t;
}

static inline void pg_backward(hth_problem *problem, pg_net *net, const pg_layer *layer)
{
    pg_value *x = &net->value[layer->in[0]], *y = &net->value[layer->out];
    int dy = y->grad;
    if (layer->kind == PG_CONV) {
        int in[2] = {x->tensor, dy};
        double w = pg_weight_bytes(net, layer);
        int dw = pt_node(problem, in, 2, HTH_MEM_GRADIENT, (uint64_t)w, false);
        pg_menu(problem, problem->n_nodes - 1, net, layer, 2);
        pg_traffic(problem, problem->n_nodes - 1, net->device, w);
        if (layer->in[0] != 0) {
            int from[2] = {dy, layer->weight};
            int dx = pt_node(problem, from, 2, HTH_MEM_GRADIENT,
                             (uint64_t)pg_size(net, layer->in[0]), false);
            pg_menu(problem, problem->n_nodes - 1, net, layer, 1);
            pg_traffic(problem, problem->n_nodes - 1, net->device, 0);
            pg_accumulate(problem, net, layer->in[0], dx);
        }
        int update[2] = {layer->weight, dw};
        pt_node(problem, update, 2, HTH_MEM_OUTPUT, (uint64_t)w, false);
        problem->tensors[problem->n_tensors - 1].external = true;
        problem->tensors[problem->n_tensors - 1].replaces = layer->weight + 1;
        pg_traffic(problem, problem->n_nodes - 1, net->device, 3 * w);
        problem->nodes[problem->n_nodes - 1].recomputable = false;
        return;
    }
    for (int k = 0; k < 2 && layer->in[k] >= 0; k++) {
        int in[3] = {dy, -1, -1}, n_in = 1;
        if (layer->kind == PG_ADD) {
            pg_accumulate(problem, net, layer->in[k], dy);
            continue;
        }
        if (layer->kind == PG_BN) {
            in[n_in++] = x->tensor;
        } else if (layer->kind == PG_RELU) {
            in[n_in++] = y->tensor;
        } else if (layer->kind == PG_POOL) {
            in[n_in++] = y->extra;
        }
        bool inplace = layer->kind == PG_RELU || layer->kind == PG_BN;
        pg_accumulate(problem, net, layer->in[k],
                      pg_grad_node(problem, net, in, n_in, layer->in[k], inplace));
    }
}

// The step of a network whose last value is `last`.
static inline hth_problem pg_step(pg_net *net, int last)
{
    hth_problem p = pt_problem(8 * net->n_layers + 16, 8 * net->n_layers + 16);
    p.h2d_bytes_per_s = net->device->h2d;
    p.d2h_bytes_per_s = net->device->d2h;
    p.latency_us = net->device->latency_us;
    net->value[0].tensor = pt_tensor(&p, HTH_MEM_INPUT, (uint64_t)pg_size(net, 0), -1);
    p.tensors[0].external = true;
    for (int i = 0; i < net->n_layers; i++) {
        pg_forward(&p, net, &net->layer[i]);
    }
    int t = net->value[last].tensor;
    net->value[last].grad = pg_grad_node(&p, net, &t, 1, last, false);
    for (int i = net->n_layers - 1; i >= 0; i--) {
        pg_backward(&p, net, &net->layer[i]);
    }
    return p;
}

// The convolutions of VGG (Simonyan and Zisserman 2014): widths, -1: a pool.
static inline hth_problem pg_vgg(int batch, int size, const int *widths, size_t n_widths)
{
    pg_net *n = pg_net_new(&pg_gpu, batch);
    int x = pg_value_new(n, 3, size, size);
    for (size_t i = 0; i < n_widths; i++) {
        x = widths[i] < 0 ? pg_pool(n, x)
                          : pg_same(n, PG_RELU, pg_conv(n, x, widths[i], 3, 1, false));
    }
    hth_problem p = pg_step(n, x);
    hth_free(n);
    return p;
}

static inline hth_problem pg_vgg19(int batch, int size)
{
    static const int widths[] = {64,  64,  -1,  128, 128, -1,  256, 256, 256, 256, -1,
                                 512, 512, 512, 512, -1,  512, 512, 512, 512, -1};
    return pg_vgg(batch, size, widths, sizeof widths / sizeof *widths);
}

static inline hth_problem pg_vgg16(int batch, int size)
{
    static const int widths[] = {64, 64,  -1,  128, 128, -1,  256, 256, 256,
                                 -1, 512, 512, 512, -1,  512, 512, 512, -1};
    return pg_vgg(batch, size, widths, sizeof widths / sizeof *widths);
}

// MobileNet (Howard et al. 2017): filters of one channel each, then products over channels.
static inline hth_problem pg_mobilenet(int batch)
{
    static const int layer[][2] = {{64, 1},  {128, 2},  {128, 1}, {256, 2}, {256, 1},
                                   {512, 2}, {512, 1},  {512, 1}, {512, 1}, {512, 1},
                                   {512, 1}, {1024, 2}, {1024, 1}};
    pg_net *n = pg_net_new(&pg_gpu, batch);
    int x = pg_cbr(n, pg_value_new(n, 3, 224, 224), 32, 3, 2);
    for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
        int y = pg_conv(n, x, n->value[x].c, 3, layer[i][1], true);
        x = pg_cbr(n, pg_same(n, PG_RELU, pg_same(n, PG_BN, y)), layer[i][0], 1, 1);
    }
    hth_problem p = pg_step(n, x);
    hth_free(n);
    return p;
}

// blocks: of the four stages; 3,4,6,3: ResNet-50; 3,8,36,3: ResNet-152.
static inline hth_problem pg_resnet(int batch, const int *blocks)
{
    pg_net *n = pg_net_new(&pg_gpu, batch);
    int x = pg_pool(n, pg_cbr(n, pg_value_new(n, 3, 224, 224), 64, 7, 2));
    for (int s = 0; s < 4; s++) {
        for (int b = 0; b < blocks[s]; b++) {
            int stride = b == 0 && s > 0 ? 2 : 1, c = 64 << s;
            int y = pg_cbr(n, pg_cbr(n, x, c, 1, 1), c, 3, stride);
            y = pg_same(n, PG_BN, pg_conv(n, y, 4 * c, 1, 1, false));
            x = b == 0 ? pg_same(n, PG_BN, pg_conv(n, x, 4 * c, 1, stride, false)) : x;
            x = pg_same(n, PG_RELU, pg_join(n, PG_ADD, y, x));
        }
    }
    hth_problem p = pg_step(n, x);
    hth_free(n);
    return p;
}

// The network of POET's authors for CIFAR-10: ResNet's blocks of two 3x3 convolutions, each with a
// third on the way past them.
static inline hth_problem pg_resnet_cifar(const pg_device *device, int batch)
{
    pg_net *n = pg_net_new(device, batch);
    int x = pg_value_new(n, 3, 32, 32);
    x = pg_same(n, PG_BN, pg_conv(n, x, 16, 3, 1, false));
    for (int i = 0; i < 6; i++) {
        int c = 16 << i / 2, stride = i % 2 == 0 && i > 0 ? 2 : 1;
        int y = pg_cbr(n, pg_cbr(n, x, c, 3, stride), c, 3, 1);
        int past = pg_same(n, PG_BN, pg_conv(n, x, c, 3, stride, false));
        x = pg_same(n, PG_RELU, pg_join(n, PG_ADD, y, past));
    }
    hth_problem p = pg_step(n, x);
    hth_free(n);
    return p;
}

static inline hth_problem pg_unet(int batch, int h, int w)
{
    pg_net *n = pg_net_new(&pg_gpu, batch);
    int x = pg_value_new(n, 3, h, w), skip[4];
    for (int d = 0; d < 5; d++) {
        x = pg_same(n, PG_RELU, pg_conv(n, x, 64 << d, 3, 1, false));
        x = pg_same(n, PG_RELU, pg_conv(n, x, 64 << d, 3, 1, false));
        if (d < 4) {
            skip[d] = x;
            x = pg_pool(n, x);
        }
    }
    for (int d = 3; d >= 0; d--) {
        x = pg_join(n, PG_CONCAT, skip[d], pg_conv(n, pg_up(n, x), 64 << d, 1, 1, false));
        x = pg_same(n, PG_RELU, pg_conv(n, x, 64 << d, 3, 1, false));
        x = pg_same(n, PG_RELU, pg_conv(n, x, 64 << d, 3, 1, false));
    }
    hth_problem p = pg_step(n, x);
    hth_free(n);
    return p;
}

// A random network of about `layers` layers: chains, skips, pools, all kinds of nodes.
static inline hth_problem pg_random(uint64_t seed, int layers)
{
    pt_state = seed * 77 + 5;
    pg_net *n = hth_calloc(1, sizeof *n);
    n->device = &pg_gpu;
    n->batch = 1 + (int)pt_random(8);
    int x = pg_value_new(n, 3, 32, 32), old = -1;
    x = pg_conv(n, x, 16, 3, 1, false);
    while (n->n_layers < layers) {
        switch (pt_random(6)) {
        case 0:
            x = n->value[x].h > 8 ? pg_pool(n, x) : pg_same(n, PG_BN, x);
            break;
        case 1:
            x = pg_cbr(n, x, n->value[x].c, 3, 1);
            break;
        case 2:
            if (old >= 0 && n->value[old].h == n->value[x].h && n->value[old].c == n->value[x].c) {
                x = pg_join(n, PG_ADD, x, old);
                break;
            } // fall through
        case 3:
            x = pg_same(n, PG_RELU, x);
            break;
        default:
            x = pg_conv(n, x, 8 + 8 * (int)pt_random(6), pt_random(2) ? 3 : 1, 1, false);
        }
        old = pt_random(3) == 0 ? x : old;
    }
    hth_problem p = pg_step(n, x);
    p.copy_interference = (double)(seed % 3) / 4;
    hth_free(n);
    return p;
}

// The same with tensors small enough for many runs.
static inline hth_problem pg_random_small(uint64_t seed)
{
    hth_problem p = pg_random(seed, 4 + (int)(seed % 12));
    for (int t = 0; t < p.n_tensors; t++) {
        p.tensors[t].bytes = (p.tensors[t].bytes / 64 + 8) / 4 * 4;
    }
    for (int i = 0; i < p.n_nodes; i++) {
        for (int a = 0; a < p.nodes[i].n_alternatives; a++) {
            p.nodes[i].alternatives[a].workspace_bytes /= 64;
        }
    }
    return p;
}

// Plans problem with random modes; `moves`: 0 keeps everything.
static inline hth_plan *pg_random_schedule(hth_problem *problem, uint64_t seed, bool moves)
{
    hth_step m;
    hth_decoder d;
    hth_outcome o;
    hth_schedule s;
    hth_plan *plan;
    uint64_t peak;
    assert_ok(hth_plan_train_peak(problem, &peak));
    assert_ok(hth_step_init(&m, problem));
    assert_ok(hth_decoder_init(&d, &m, peak / 100 * (40 + seed % 60)));
    uint8_t *mode = hth_calloc((size_t)m.n_intervals + 1, 1);
    pt_state = seed;
    for (int g = 0; moves && g < m.n_intervals; g++) {
        mode[g] = (uint8_t)pt_random(HTH_N_INTERVAL_MODES);
    }
    hth_decode(&d, mode, &o);
    assert_ok(hth_decode_schedule(&d, &o, &s));
    problem->budget = UINT64_MAX / 4;
    assert_ok(hth_plan_emit(problem, &s, false, &plan));
    assert_ok(hth_plan_verify(problem, plan));
    hth_free(mode);
    hth_schedule_fini(&s);
    hth_decoder_fini(&d);
    hth_step_fini(&m);
    return plan;
}

#endif
