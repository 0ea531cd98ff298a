// SPDX-License-Identifier: Apache-2.0
// Executing a plan of the fake cuDNN: writes to all of the workspace, takes the tensors as they
// lie, rounds as the engine says, and computes with kernels/ref.
#include "kernels/cuda/fake/dnn.h"

#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

hth_cuda_fake_engine hth_cuda_fake_engines[HTH_CUDA_FAKE_ENGINES];

int64_t hth_cuda_fake_workspace(const fake_problem *problem)
{
    int64_t x = hth_shape_elements(&problem->x) * (int64_t)sizeof(float);
    return problem->engine == 1 ? x * (1 + problem->knob) : 0;
}

// The position of element i of a row-major tensor in memory.
static int64_t run_place(const fake_problem *problem, const hth_shape *shape, int64_t i)
{
    int64_t size = 1;
    for (int d = 2; d < shape->rank; d++) {
        size *= shape->dim[d];
    }
    int64_t position = i % size, channel = i / size % shape->dim[1],
            image = i / size / shape->dim[1];
    return problem->nhwc ? (image * size + position) * shape->dim[1] + channel : i;
}

static float run_load(const fake_problem *problem, const void *at, int64_t i, bool factor)
{
    float v = problem->half ? hth_bf16_to_f32(((const uint16_t *)at)[i]) : ((const float *)at)[i];
    return factor && problem->engine == 2 ? hth_cuda_fake_tf32(v) : v; // of a bf16 the same
}

// A tensor in memory as a row-major one in f32.
static float *run_open(const fake_problem *problem, const hth_shape *shape, const void *at,
                       bool factor)
{
    int64_t n = hth_shape_elements(shape);
    float *out = calloc((size_t)n + 1, sizeof *out);
    for (int64_t i = 0; out != NULL && i < n; i++) {
        out[i] = run_load(problem, at, run_place(problem, shape, i), factor);
    }
    return out;
}

static void run_store(const fake_problem *problem, const hth_shape *shape, const float *from,
                      void *at)
{
    for (int64_t i = 0; i < hth_shape_elements(shape); i++) {
        int64_t to = run_place(problem, shape, i);
        if (problem->half) {
            ((uint16_t *)at)[to] = hth_f32_to_bf16(from[i]);
        } else {
            ((float *)at)[to] = from[i];
        }
    }
}

static hth_err run_attributes(const fake_problem *problem, hth_node *node)
{
    int n = problem->rank - 2;
    HTH_TRY(hth_node_set_ints(node, "pads", problem->pads, 2 * n));
    HTH_TRY(hth_node_set_ints(node, "strides", problem->stride, n));
    HTH_TRY(hth_node_set_ints(node, "dilations", problem->dilation, n));
    return hth_node_set_int(node, "group", problem->x.dim[1] / problem->w.dim[1]);
}

static hth_err run_convolution(const fake_problem *problem, float *const t[3])
{
    int index[2] = {0, 1}, out = 2;
    hth_node node = {.name = (char *)"fake", .op = problem->op, .n_inputs = 2, .n_outputs = 1};
    hth_graph graph = {.training = false};
    hth_tensor x = {HTH_DT_F32, HTH_LAYOUT_PLAIN, problem->x, t[RUN_X], SIZE_MAX}, w = x, y = x,
               in[2];
    w.shape = problem->w;
    w.data = t[RUN_W];
    y.shape = problem->y;
    y.data = t[RUN_Y];
    node.inputs = index;
    node.outputs = &out;
    in[0] = problem->op == HTH_OP_CONV_GRAD_DATA ? y : x;
    in[1] = problem->op == HTH_OP_CONV_GRAD_FILTER ? y : w;
    hth_tensor to = problem->op == HTH_OP_CONV ? y : w;
    if (problem->op == HTH_OP_CONV_GRAD_DATA) {
        to = x;
    }
    hth_err err = run_attributes(problem, &node);
    if (err == HTH_OK) {
        err = hth_ref_eval(NULL, &graph, &node, in, &to);
    }
    for (int i = 0; i < node.n_attrs; i++) {
        hth_attr_clear(&node.attrs[i]);
    }
    free(node.attrs);
    return err;
}

static void run_epilogue(const fake_run *run, float *y)
{
    const fake_problem *p = &run->p;
    int64_t count = hth_shape_elements(&p->y), size = count / p->y.dim[0] / p->y.dim[1];
    for (int64_t i = 0; i < count; i++) {
        float v = y[i];
        v += p->bias ? run_load(p, run->at[RUN_BIAS], i / size % p->y.dim[1], false) : 0;
        v += p->sum ? run_load(p, run->at[RUN_SUM], run_place(p, &p->y, i), false) : 0;
        y[i] = p->relu && v < 0 ? 0 : v;
    }
}

hth_err hth_cuda_fake_convolve(void *job)
{
    const fake_run *r = job;
    const fake_problem *p = &r->p;
    const hth_shape *shape[] = {&p->x, &p->w, &p->y};
    int result = p->op == HTH_OP_CONV ? RUN_Y : RUN_W;
    if (p->op == HTH_OP_CONV_GRAD_DATA) {
        result = RUN_X;
    }
    hth_cuda_fake_engine *engine = &hth_cuda_fake_engines[p->engine];
    atomic_fetch_add(&engine->runs, 1);
    if (engine->slow_ns > 0) {
        nanosleep(&(struct timespec){.tv_nsec = (long)engine->slow_ns}, NULL);
    }
    float *t[3];
    if (hth_cuda_fake_workspace(p) > 0) {
        memset(r->workspace, 0xFF, (size_t)hth_cuda_fake_workspace(p));
    }
    hth_err err = HTH_OK;
    for (int i = 0; i < 3; i++) {
        t[i] = run_open(p, shape[i], r->at[i], true);
        err = t[i] == NULL ? HTH_ENOMEM : err;
    }
    if (err == HTH_OK) {
        err = run_convolution(p, t);
    }
    if (err == HTH_OK) {
        run_epilogue(r, t[RUN_Y]);
        run_store(p, shape[result], t[result], r->at[result]);
    }
    for (int i = 0; i < 3; i++) {
        free(t[i]);
    }
    return err;
}
