// SPDX-License-Identifier: Apache-2.0
// Captures are CUDA graphs: a stream is captured, and with it what joins it by events; the graph is
// made executable, or an executable one is brought up to date, which is cheaper and keeps its
// memory. A failure of what was captured, or of a call that the driver refuses meanwhile, shows at
// the end and costs the capture only: nothing of it ran.
//
// The mode is the thread's: other threads, with other devices, may do what they like.
#include "device/cuda/cuda.h"

#include "base/alloc.h"

typedef struct cuda_capture {
    hth_capture base;
    CUgraphExec exec;
} cuda_capture;

static hth_cuda *capture_device(hth_device *device)
{
    return (hth_cuda *)device;
}

hth_err hth_cuda_capture_begin(hth_stream *stream)
{
    hth_cuda *d = capture_device(stream->device);
    if (d->capturing) {
        return hth_fail(HTH_EBUSY, "device %s: work is being captured already", d->base.props.name);
    }
    HTH_TRY(hth_cuda_enter(d));
    HTH_TRY(HTH_CUDA(d, cuStreamBeginCapture, hth_cuda_stream_of(stream),
                     CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    d->capturing = true;
    d->recorded.err = HTH_OK;
    return HTH_OK;
}

// Brings *io up to date; where the graph has become another one, *io is closed and NULL.
static hth_err capture_update(hth_cuda *cuda, CUgraph graph, hth_capture **io)
{
    CUgraphExecUpdateResultInfo info;
    CUresult r = cuda->api->cuGraphExecUpdate(((cuda_capture *)*io)->exec, graph, &info);
    if (r == CUDA_SUCCESS) {
        return HTH_OK;
    }
    hth_cuda_capture_close(*io);
    *io = NULL;
    return r == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
               ? HTH_OK
               : hth_cuda_status(cuda, r, "cuGraphExecUpdate");
}

static hth_err capture_open(hth_cuda *cuda, CUgraph graph, hth_capture **out)
{
    cuda_capture *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_fail(HTH_ENOMEM, "device %s: no memory for a capture", cuda->base.props.name);
    }
    hth_err err = HTH_CUDA(cuda, cuGraphInstantiate, &c->exec, graph, 0);
    if (err != HTH_OK) {
        hth_free(c);
        return err;
    }
    c->base.device = &cuda->base;
    *out = &c->base;
    return HTH_OK;
}

hth_err hth_cuda_capture_end(hth_stream *stream, hth_capture **io)
{
    hth_cuda *d = capture_device(stream->device);
    CUgraph graph = NULL;
    d->capturing = false;
    (void)hth_cuda_enter(d);
    hth_err err = HTH_CUDA(d, cuStreamEndCapture, hth_cuda_stream_of(stream), &graph);
    if (d->recorded.err != HTH_OK && err != HTH_EDEVLOST) { // the cause, whatever the driver says
        err = hth_fail(d->recorded.err, "%s", d->recorded.detail);
    }
    if (err == HTH_OK && io != NULL && *io != NULL) {
        err = capture_update(d, graph, io);
    }
    if (err == HTH_OK && io != NULL && *io == NULL) {
        err = capture_open(d, graph, io);
    }
    if (graph != NULL) {
        (void)d->api->cuGraphDestroy(graph);
    }
    if (err != HTH_OK && io != NULL && *io != NULL) {
        hth_cuda_capture_close(*io);
        *io = NULL;
    }
    return err;
}

hth_err hth_cuda_capture_launch(hth_capture *capture, hth_stream *stream)
{
    hth_cuda *d = capture_device(stream->device);
    HTH_TRY(hth_cuda_enter(d));
    return HTH_CUDA(d, cuGraphLaunch, ((cuda_capture *)capture)->exec, hth_cuda_stream_of(stream));
}

void hth_cuda_capture_close(hth_capture *capture)
{
    hth_cuda *d = capture_device(capture->device);
    (void)hth_cuda_enter(d);
    (void)d->api->cuGraphExecDestroy(((cuda_capture *)capture)->exec);
    hth_free(capture);
}
