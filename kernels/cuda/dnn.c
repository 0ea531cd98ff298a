// SPDX-License-Identifier: Apache-2.0
// Operation graphs of convolutions, devices by description, plans and their execution. Every
// descriptor that a graph is made of is ended with it, in the opposite order. One thread.
#include "kernels/cuda/dnn_call.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

hth_err hth_dnn_status(const hth_cuda_api *api, cudnnStatus_t r, const char *call)
{
    char text[256] = "";
    if (r == CUDNN_STATUS_SUCCESS) {
        return HTH_OK;
    }
    api->cudnnGetLastErrorString(text, sizeof text);
    hth_err err = r == CUDNN_STATUS_ALLOC_FAILED ? HTH_ENOMEM : HTH_ENOTSUP;
    return hth_fail(err, "cuDNN: %s answered %d%s%s", call, (int)r, text[0] ? ": " : "", text);
}

hth_err hth_dnn_describe(hth_dnn_device *device, const char *json)
{
    const hth_cuda_api *api = device->api;
    HTH_TRY(DNN(api, cudnnBackendCreateDescriptor, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
                &device->description));
    hth_err err = DNN(api, cudnnBackendSetAttribute, device->description,
                      CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                      (int64_t)strlen(json) + 1, json);
    if (err == HTH_OK) {
        err = DNN(api, cudnnBackendFinalize, device->description);
    }
    if (err != HTH_OK) {
        hth_dnn_undescribe(device);
    }
    return err;
}

void hth_dnn_undescribe(hth_dnn_device *device)
{
    if (device->description != NULL) {
        (void)device->api->cudnnBackendDestroyDescriptor(device->description);
        device->description = NULL;
    }
}

// A descriptor of the graph. Errors stick in *err, so that a graph reads like its drawing.
static cudnnBackendDescriptor_t dnn_make(hth_dnn_graph *graph, hth_err *err,
                                         cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (*err == HTH_OK && graph->n == HTH_DNN_DESCRIPTORS) {
        *err = hth_fail(HTH_ENOTSUP, "a graph of more than %d descriptors", HTH_DNN_DESCRIPTORS);
    }
    if (*err == HTH_OK) {
        *err = DNN(graph->device->api, cudnnBackendCreateDescriptor, type, &d);
        graph->list[graph->n] = d;
        graph->n += *err == HTH_OK;
    }
    return d;
}

static void dnn_set(hth_dnn_graph *graph, hth_err *err, cudnnBackendDescriptor_t d,
                    cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    int64_t count, const void *value)
{
    if (*err == HTH_OK) {
        *err = DNN(graph->device->api, cudnnBackendSetAttribute, d, name, type, count, value);
    }
}

static void dnn_end(hth_dnn_graph *graph, hth_err *err, cudnnBackendDescriptor_t d)
{
    if (*err == HTH_OK) {
        *err = DNN(graph->device->api, cudnnBackendFinalize, d);
    }
}

// Steps of a dense tensor: row-major, or with axis 1 last.
static void dnn_strides(bool nhwc, int rank, const int64_t *dims, int64_t *strides)
{
    int64_t at = 1;
    if (nhwc) {
        strides[1] = at;
        at *= dims[1];
    }
    for (int i = rank - 1; i >= 0; i--) {
        if (i != 1 || !nhwc) {
            strides[i] = at;
            at *= dims[i];
        }
    }
}

// What is only between operations stays in f32.
static cudnnBackendDescriptor_t dnn_tensor(hth_dnn_graph *graph, hth_err *err,
                                           const hth_dnn_conv *conv, int64_t uid,
                                           const int64_t *dims, bool is_virtual)
{
    cudnnBackendDescriptor_t d = dnn_make(graph, err, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = conv->precision == HTH_PRECISION_BF16 && !is_virtual
                               ? CUDNN_DATA_BFLOAT16
                               : CUDNN_DATA_FLOAT;
    int rank = conv->n_spatial + 2;
    int64_t align = 16, strides[5];
    dnn_strides(conv->nhwc, rank, dims, strides);
    dnn_set(graph, err, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    dnn_set(graph, err, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dims);
    dnn_set(graph, err, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides);
    dnn_set(graph, err, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    dnn_set(graph, err, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (is_virtual) {
        dnn_set(graph, err, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    }
    dnn_end(graph, err, d);
    return d;
}

static cudnnBackendDescriptor_t dnn_convolution(hth_dnn_graph *graph, hth_err *err,
                                                const hth_dnn_conv *conv)
{
    cudnnBackendDescriptor_t d = dnn_make(graph, err, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t n = conv->n_spatial;
    dnn_set(graph, err, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    dnn_set(graph, err, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    dnn_set(graph, err, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n);
    dnn_set(graph, err, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, n, conv->pre);
    dnn_set(graph, err, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, n, conv->post);
    dnn_set(graph, err, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, n,
            conv->stride);
    dnn_set(graph, err, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, n, conv->dilation);
    dnn_end(graph, err, d);
    return d;
}

// The attributes of one direction: x or dx, w or dw, y or dy, the convolution, alpha, beta.
typedef struct dnn_direction {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
} dnn_direction;

static const dnn_direction dnn_directions[] = {
    [HTH_DNN_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [HTH_DNN_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [HTH_DNN_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static cudnnBackendDescriptor_t dnn_operation(hth_dnn_graph *graph, hth_err *err,
                                              const hth_dnn_conv *c, cudnnBackendDescriptor_t y)
{
    const dnn_direction *k = &dnn_directions[c->kind];
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t x = dnn_tensor(graph, err, c, HTH_DNN_X, c->x, false);
    cudnnBackendDescriptor_t w = dnn_tensor(graph, err, c, HTH_DNN_W, c->w, false);
    cudnnBackendDescriptor_t conv = dnn_convolution(graph, err, c),
                             op = dnn_make(graph, err, k->type);
    dnn_set(graph, err, op, k->x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    dnn_set(graph, err, op, k->w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    dnn_set(graph, err, op, k->y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    dnn_set(graph, err, op, k->conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &conv);
    dnn_set(graph, err, op, k->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    dnn_set(graph, err, op, k->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    dnn_end(graph, err, op);
    return op;
}

static cudnnBackendDescriptor_t dnn_pointwise(hth_dnn_graph *graph, hth_err *err,
                                              cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
                                              cudnnBackendDescriptor_t b,
                                              cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t how = dnn_make(graph, err, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    dnn_set(graph, err, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    dnn_set(graph, err, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    dnn_end(graph, err, how);
    cudnnBackendDescriptor_t op =
        dnn_make(graph, err, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    cudnnBackendAttributeType_t is = CUDNN_TYPE_BACKEND_DESCRIPTOR;
    dnn_set(graph, err, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, is, 1, &how);
    dnn_set(graph, err, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, is, 1, &x);
    if (b != NULL) {
        dnn_set(graph, err, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, is, 1, &b);
    }
    dnn_set(graph, err, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, is, 1, &y);
    dnn_end(graph, err, op);
    return op;
}

// The operations: the convolution, then what is fused after it. Returns their number.
static int dnn_operations(hth_dnn_graph *graph, hth_err *err, const hth_dnn_conv *conv,
                          cudnnBackendDescriptor_t *ops)
{
    int n = 0, left = conv->bias + conv->sum + conv->relu;
    const int64_t channel[5] = {1, conv->y[1], 1, 1, 1};
    const bool wanted[] = {conv->bias, conv->sum, conv->relu};
    cudnnBackendDescriptor_t y =
        dnn_tensor(graph, err, conv, left > 0 ? 1 : HTH_DNN_Y, conv->y, left > 0);
    ops[n++] = dnn_operation(graph, err, conv, y);
    for (int i = 0; i < 3; i++) {
        if (!wanted[i]) {
            continue;
        }
        left--;
        cudnnBackendDescriptor_t b = NULL, x = y;
        if (i == 0) {
            b = dnn_tensor(graph, err, conv, HTH_DNN_BIAS, channel, false);
        } else if (i == 1) {
            b = dnn_tensor(graph, err, conv, HTH_DNN_SUM, conv->y, false);
        }
        y = dnn_tensor(graph, err, conv, left > 0 ? 2 + i : HTH_DNN_Y, conv->y, left > 0);
        ops[n++] = dnn_pointwise(graph, err, i < 2 ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD,
                                 x, b, y);
    }
    return n;
}

hth_err hth_dnn_graph_open(const hth_dnn_device *device, const hth_dnn_conv *conv,
                           hth_dnn_graph *out)
{
    hth_err err = HTH_OK;
    cudnnBackendDescriptor_t ops[4];
    *out = (hth_dnn_graph){.device = device,
                           .fused = conv->bias || conv->sum || conv->relu,
                           .precision = conv->precision};
    int n = dnn_operations(out, &err, conv, ops);
    out->graph = dnn_make(out, &err, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    dnn_set(out, &err, out->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n,
            ops);
    if (device->handle != NULL) {
        dnn_set(out, &err, out->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                &device->handle);
    }
    dnn_end(out, &err, out->graph);
    if (err != HTH_OK) {
        hth_dnn_graph_close(out);
    }
    return err;
}

void hth_dnn_graph_close(hth_dnn_graph *graph)
{
    while (graph->n > 0) {
        (void)graph->device->api->cudnnBackendDestroyDescriptor(graph->list[--graph->n]);
    }
}

// Plans.

hth_err hth_dnn_plan_json(const hth_dnn_device *device, cudnnBackendDescriptor_t plan, char **out)
{
    int64_t bytes = 0;
    *out = NULL;
    HTH_TRY(DNN(device->api, cudnnBackendGetAttribute, plan,
                CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &bytes, NULL));
    char *text = hth_calloc(1, (size_t)bytes + 1);
    if (text == NULL) {
        return hth_no_memory("a plan of %lld bytes", (long long)bytes);
    }
    hth_err err =
        DNN(device->api, cudnnBackendGetAttribute, plan,
            CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, bytes, &bytes, text);
    if (err != HTH_OK) {
        hth_free(text);
        return err;
    }
    *out = text;
    return HTH_OK;
}

hth_err hth_dnn_execute(const hth_dnn_device *device, cudnnBackendDescriptor_t plan, int n,
                        const int64_t *uid, void *const *address, void *workspace)
{
    const hth_cuda_api *api = device->api;
    cudnnBackendDescriptor_t pack;
    HTH_TRY(DNN(api, cudnnBackendCreateDescriptor, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    hth_err err;
    HTH_GOTO(DNN(api, cudnnBackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                 CUDNN_TYPE_INT64, n, uid),
             done);
    HTH_GOTO(DNN(api, cudnnBackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                 CUDNN_TYPE_VOID_PTR, n, address),
             done);
    HTH_GOTO(DNN(api, cudnnBackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                 CUDNN_TYPE_VOID_PTR, 1, &workspace),
             done);
    HTH_GOTO(DNN(api, cudnnBackendFinalize, pack), done);
    err = DNN(api, cudnnBackendExecute, device->handle, plan, pack);
done:
    (void)api->cudnnBackendDestroyDescriptor(pack);
    return err;
}
