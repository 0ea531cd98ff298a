// SPDX-License-Identifier: Apache-2.0
// cuDNN's graph API for tests. A descriptor is what was set on it; finalizing an operation graph
// makes of it a convolution and its epilogue, which engines, configurations and plans carry on.
// Engine 0 takes all f32 without workspace; 1 wants the input's size of it, twice that by its
// knob, and no epilogue; 2 rounds f32 inputs to TF32 and is the one that takes bf16; 3 is not
// deterministic, 4 rounds f32 to bf16: both must never be taken. Tensors are dense, row-major or
// with channels last, all of one type and alike.
#include "kernels/cuda/fake/dnn.h"

#include "device/cuda/fake/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE_ATTRS  16
#define FAKE_VALUES 8
#define FAKE_TEXT   4096

typedef struct fake_attr {
    cudnnBackendAttributeName_t name;
    int64_t count;
    int64_t value[FAKE_VALUES];
} fake_attr;

typedef struct fake_descriptor {
    cudnnBackendDescriptorType_t type;
    int n;
    fake_attr attr[FAKE_ATTRS];
    fake_problem problem;
    bool loaded; // from a text
} fake_descriptor;

// A call that was to fail does so.
#define FAKE_CALL()                                                                                \
    do {                                                                                           \
        if (hth_cuda_fake_enter() != CUDA_SUCCESS) {                                               \
            return CUDNN_STATUS_EXECUTION_FAILED;                                                  \
        }                                                                                          \
    } while (0)

static size_t attr_size(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

static const fake_attr *attr_of(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name)
{
    for (int i = 0; descriptor != NULL && i < descriptor->n; i++) {
        if (descriptor->attr[i].name == name) {
            return &descriptor->attr[i];
        }
    }
    return NULL;
}

static int64_t attr_int(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name)
{
    const fake_attr *a = attr_of(descriptor, name);
    return a != NULL ? a->value[0] : 0;
}

static fake_descriptor *attr_descriptor(const fake_descriptor *descriptor,
                                        cudnnBackendAttributeName_t name)
{
    return (fake_descriptor *)(intptr_t)attr_int(descriptor, name);
}

static cudnnStatus_t fake_create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    FAKE_CALL();
    fake_descriptor *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return CUDNN_STATUS_ALLOC_FAILED;
    }
    d->type = type;
    *out = (cudnnBackendDescriptor_t)(void *)d;
    hth_cuda_fake_state()->live++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_destroy(cudnnBackendDescriptor_t d)
{
    free(d);
    hth_cuda_fake_state()->live--;
    return CUDNN_STATUS_SUCCESS;
}

// A plan's text: the version and all of the problem. Another version's is refused, as is what is
// not of this form.
static cudnnStatus_t text_write(const fake_problem *problem, int64_t cap, int64_t *n, void *out)
{
    char text[FAKE_TEXT];
    int at = snprintf(text, sizeof text, "{\"cudnnVersion\":%zu,\"problem\":\"",
                      hth_cuda_fake_api()->cudnnGetVersion());
    for (size_t i = 0; i < sizeof *problem; i++) {
        at += snprintf(text + at, sizeof text - (size_t)at, "%02x", ((const uint8_t *)problem)[i]);
    }
    *n = at + snprintf(text + at, sizeof text - (size_t)at, "\"}") + 1;
    if (cap >= *n) {
        memcpy(out, text, (size_t)*n);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t text_read(const char *text, int64_t bytes, fake_problem *problem)
{
    size_t version = 0;
    int at = 0;
    if (bytes >= FAKE_TEXT ||
        sscanf(text, "{\"cudnnVersion\":%zu,\"problem\":\"%n", &version, &at) != 1 || at == 0 ||
        version != hth_cuda_fake_api()->cudnnGetVersion() ||
        bytes != at + 2 * (int64_t)sizeof *problem + 2) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    for (size_t i = 0; i < sizeof *problem; i++) {
        unsigned byte;
        if (sscanf(text + at + 2 * i, "%2x", &byte) != 1) {
            return CUDNN_STATUS_BAD_PARAM;
        }
        ((uint8_t *)problem)[i] = (uint8_t)byte;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_set(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int64_t count, const void *value)
{
    fake_descriptor *d = (fake_descriptor *)(void *)to;
    FAKE_CALL();
    if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) {
        d->loaded = true;
        return text_read(value, count, &d->problem);
    }
    if (d->n == FAKE_ATTRS || count > FAKE_VALUES) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    fake_attr *a = &d->attr[d->n++];
    *a = (fake_attr){.name = name, .count = count};
    for (int64_t i = 0; i < count; i++) {
        memcpy(&a->value[i], (const char *)value + (size_t)i * attr_size(type), attr_size(type));
    }
    return CUDNN_STATUS_SUCCESS;
}

// From the descriptors of a graph to what it computes.

static void problem_shape(const fake_descriptor *tensor, hth_shape *out)
{
    const fake_attr *a = attr_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    out->rank = (int)a->count;
    memcpy(out->dim, a->value, (size_t)a->count * sizeof a->value[0]);
}

// Whether a tensor is dense, in the one way or the other. Where both are the same it is in both.
static bool problem_dense(const fake_descriptor *tensor, bool nhwc)
{
    const fake_attr *dim = attr_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const fake_attr *step = attr_of(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    int64_t at = 1, rank = dim->count;
    bool dense = step->count == rank;
    for (int64_t k = rank - 1; dense && k >= 0; k--) {
        int64_t d = k;
        if (nhwc && k > 0) {
            d = k == rank - 1 ? 1 : k + 1;
        }
        dense = dim->value[d] == 1 || step->value[d] == at;
        at *= dim->value[d];
    }
    return dense;
}

// All tensors in memory have one type and lie alike; what is only between operations is f32.
static bool problem_tensors(const fake_descriptor *const *tensor, int n, fake_problem *problem)
{
    bool plain = true, last = true, alike = true;
    problem->half = attr_int(tensor[0], CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16;
    for (int i = 0; i < n; i++) {
        bool between = attr_int(tensor[i], CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
        int64_t type = attr_int(tensor[i], CUDNN_ATTR_TENSOR_DATA_TYPE);
        alike = alike && attr_int(tensor[i], CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) == 16 &&
                type == (problem->half && !between ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT);
        plain = plain && problem_dense(tensor[i], false);
        last = last && problem_dense(tensor[i], true);
    }
    problem->nhwc = !plain;
    return alike && (plain || last);
}

static bool problem_half(const fake_descriptor *tensor)
{
    return attr_int(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16;
}

static void problem_list(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name,
                         int64_t *out)
{
    const fake_attr *a = attr_of(descriptor, name);
    memcpy(out, a->value, (size_t)a->count * sizeof *out);
}

static bool problem_convolution(const fake_descriptor *op, fake_problem *problem)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        hth_op op;
        cudnnBackendAttributeName_t x, w, y, conv;
    } kinds[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, HTH_OP_CONV,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, HTH_OP_CONV_GRAD_DATA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, HTH_OP_CONV_GRAD_FILTER,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC}};
    for (int i = 0; i < 3; i++) {
        if (op->type == kinds[i].type) {
            const fake_descriptor *c = attr_descriptor(op, kinds[i].conv);
            int64_t n = attr_int(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
            problem->op = kinds[i].op;
            const fake_descriptor *const tensor[] = {attr_descriptor(op, kinds[i].x),
                                                     attr_descriptor(op, kinds[i].w),
                                                     attr_descriptor(op, kinds[i].y)};
            if (attr_int(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT ||
                !problem_tensors(tensor, 3, problem)) {
                return false;
            }
            problem->rank = (int)n + 2;
            problem_shape(attr_descriptor(op, kinds[i].x), &problem->x);
            problem_shape(attr_descriptor(op, kinds[i].w), &problem->w);
            problem_shape(attr_descriptor(op, kinds[i].y), &problem->y);
            problem_list(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, problem->pads);
            problem_list(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, problem->pads + n);
            problem_list(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, problem->stride);
            problem_list(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, problem->dilation);
            return true;
        }
    }
    return false;
}

// The sizes of an output as cuDNN computes them.
static bool problem_fits(const fake_problem *problem)
{
    bool ok = problem->x.dim[0] == problem->y.dim[0] && problem->w.dim[0] == problem->y.dim[1] &&
              problem->w.dim[1] > 0 && problem->x.dim[1] % problem->w.dim[1] == 0;
    for (int i = 0; i < problem->rank - 2; i++) {
        int64_t span = (problem->w.dim[2 + i] - 1) * problem->dilation[i] + 1;
        int64_t room =
            problem->x.dim[2 + i] + problem->pads[i] + problem->pads[problem->rank - 2 + i] - span;
        ok = ok && room >= 0 && room / problem->stride[i] + 1 == problem->y.dim[2 + i];
    }
    return ok;
}

static bool problem_of_graph(const fake_descriptor *graph, fake_problem *problem)
{
    const fake_attr *ops = attr_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    *problem = (fake_problem){.op = HTH_OP_NONE};
    for (int64_t i = 0; i < ops->count; i++) {
        const fake_descriptor *op = (const fake_descriptor *)(intptr_t)ops->value[i];
        if (op->type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
            if (!problem_convolution(op, problem)) {
                return false;
            }
            continue;
        }
        const fake_descriptor *how =
            attr_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        const fake_descriptor *b = attr_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        int64_t mode = attr_int(how, CUDNN_ATTR_POINTWISE_MODE);
        const fake_descriptor *y = attr_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        if (attr_int(how, CUDNN_ATTR_POINTWISE_MATH_PREC) != CUDNN_DATA_FLOAT ||
            (b != NULL && (!problem_dense(b, problem->nhwc) || problem_half(b) != problem->half)) ||
            !problem_dense(y, problem->nhwc)) {
            return false;
        }
        problem->relu = problem->relu || mode == CUDNN_POINTWISE_RELU_FWD;
        problem->bias =
            problem->bias || (b != NULL && attr_int(b, CUDNN_ATTR_TENSOR_UNIQUE_ID) == 'b');
        problem->sum =
            problem->sum || (b != NULL && attr_int(b, CUDNN_ATTR_TENSOR_UNIQUE_ID) == 's');
    }
    return problem_fits(problem);
}

static bool problem_takes(const fake_problem *problem, int64_t engine, bool fused)
{
    return engine == 2 || (!problem->half && (engine == 0 || !fused));
}

static bool problem_engine(const fake_descriptor *engine, fake_problem *problem)
{
    *problem = attr_descriptor(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH)->problem;
    problem->engine = attr_int(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    bool fused = problem->bias || problem->sum || problem->relu;
    return problem->engine >= 0 && problem->engine < HTH_CUDA_FAKE_ENGINES &&
           problem_takes(problem, problem->engine, fused);
}

static bool problem_config(const fake_descriptor *config, fake_problem *problem)
{
    const fake_descriptor *knob = attr_descriptor(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
    *problem = attr_descriptor(config, CUDNN_ATTR_ENGINECFG_ENGINE)->problem;
    problem->knob = knob != NULL ? attr_int(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) : 0;
    return knob == NULL || (problem->engine == 1 && problem->knob >= 0 && problem->knob <= 1);
}

static cudnnStatus_t fake_finalize(cudnnBackendDescriptor_t which)
{
    fake_descriptor *d = (fake_descriptor *)(void *)which;
    bool ok = true;
    FAKE_CALL();
    switch (d->type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        ok = problem_of_graph(d, &d->problem);
        break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        ok = problem_engine(d, &d->problem);
        break;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        ok = problem_config(d, &d->problem);
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        if (!d->loaded) {
            d->problem = attr_descriptor(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->problem;
        }
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        d->problem = attr_descriptor(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->problem;
        break;
    default:
        break;
    }
    return ok ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

// What heuristics answer: mode A the engines that must not be taken and the one with workspace, B
// that one with its knob, the fall-back the one that takes everything.
static cudnnStatus_t heuristics(const fake_descriptor *descriptor, int64_t cap, int64_t *n,
                                void *out)
{
    static const struct {
        int64_t mode, engine, knob;
    } answers[] = {{CUDNN_HEUR_MODE_A, 2, 0}, {CUDNN_HEUR_MODE_A, 3, 0},
                   {CUDNN_HEUR_MODE_A, 4, 0}, {CUDNN_HEUR_MODE_A, 1, 0},
                   {CUDNN_HEUR_MODE_B, 1, 1}, {CUDNN_HEUR_MODE_FALLBACK, 0, 0}};
    fake_descriptor **to = out;
    const fake_problem *p = &descriptor->problem;
    *n = 0;
    for (size_t i = 0; i < sizeof answers / sizeof *answers && *n < cap; i++) {
        bool fused = p->bias || p->sum || p->relu;
        if (answers[i].mode == attr_int(descriptor, CUDNN_ATTR_ENGINEHEUR_MODE) &&
            problem_takes(p, answers[i].engine, fused)) {
            to[*n]->problem = *p;
            to[*n]->problem.engine = answers[i].engine;
            to[*n]->problem.knob = answers[i].knob;
            (*n)++;
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_get_notes(int64_t engine, int64_t *n, cudnnBackendNumericalNote_t *out)
{
    *n = engine < 2 ? 0 : 1 + (engine == 4);
    if (engine >= 2) {
        out[0] =
            engine == 3 ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    }
    if (engine == 4) {
        out[1] = CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_get(cudnnBackendDescriptor_t const which,
                              cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                              int64_t cap, int64_t *n, void *out)
{
    const fake_descriptor *d = (const fake_descriptor *)(const void *)which;
    fake_descriptor **to = out;
    int64_t *number = out;
    FAKE_CALL();
    *n = 1;
    switch (name) {
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
        *number = HTH_CUDA_FAKE_ENGINES;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        return heuristics(d, cap, n, out);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        to[0]->problem = d->problem;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
        *n = d->problem.engine == 1 && d->problem.knob != 0;
        if (*n == 1) {
            to[0]->problem = d->problem;
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
        memset(out, 0, sizeof(cudnnBackendKnobType_t));
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
        *number = d->problem.knob;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *number = hth_cuda_fake_workspace(&d->problem);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        *number = d->problem.engine;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        return fake_get_notes(d->problem.engine, n, out);
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION:
        return text_write(&d->problem, cap, n, out);
    default:
        return CUDNN_STATUS_BAD_PARAM;
    }
}

static CUstream fake_stream;

static cudnnStatus_t fake_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const fake_descriptor *v = (const fake_descriptor *)(void *)pack;
    const fake_attr *uid = attr_of(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const fake_attr *at = attr_of(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    fake_run r = {.p = ((const fake_descriptor *)(void *)plan)->problem};
    for (int64_t i = 0; i < uid->count; i++) {
        static const char order[] = {'x', 'w', 'y', 'b', 's'};
        const char *which = memchr(order, (int)uid->value[i], sizeof order);
        if (which == NULL) {
            return CUDNN_STATUS_BAD_PARAM;
        }
        r.at[which - order] = (void *)(intptr_t)at->value[i];
    }
    r.workspace = (void *)(intptr_t)attr_int(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    bool complete = r.at[RUN_X] && r.at[RUN_W] && r.at[RUN_Y] && (!r.p.bias || r.at[RUN_BIAS]) &&
                    (!r.p.sum || r.at[RUN_SUM]) &&
                    (hth_cuda_fake_workspace(&r.p) == 0 || r.workspace != NULL);
    return complete && hth_cuda_fake_issue(fake_stream, hth_cuda_fake_convolve, &r, sizeof r) ==
                           CUDA_SUCCESS
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}

static cudnnStatus_t fake_handle_create(cudnnHandle_t *out)
{
    *out = (cudnnHandle_t)(void *)&fake_stream;
    hth_cuda_fake_state()->live++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_handle_destroy(cudnnHandle_t h)
{
    hth_cuda_fake_state()->live--;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_set_stream(cudnnHandle_t h, cudaStream_t s)
{
    fake_stream = (CUstream)s;
    return CUDNN_STATUS_SUCCESS;
}

static void fake_error(char *text, size_t cap)
{
    snprintf(text, cap, "the fake cuDNN refuses it");
}

void hth_cuda_fake_fill_dnn(hth_cuda_api *api)
{
    api->cudnnCreate = fake_handle_create;
    api->cudnnDestroy = fake_handle_destroy;
    api->cudnnSetStream = fake_set_stream;
    api->cudnnGetLastErrorString = fake_error;
    api->cudnnBackendCreateDescriptor = fake_create;
    api->cudnnBackendDestroyDescriptor = fake_destroy;
    api->cudnnBackendSetAttribute = fake_set;
    api->cudnnBackendGetAttribute = fake_get;
    api->cudnnBackendFinalize = fake_finalize;
    api->cudnnBackendExecute = fake_execute;
}
