// SPDX-License-Identifier: Apache-2.0
// Element by element: the gradient of Relu (and of Clip by constants), optimizer steps, the norm of
// all gradients. Tensors are seen as they lie in memory, padding included, so layouts need only
// agree. Everything may be in place: an element is read before it is written. An optimizer step
// that makes an element of a parameter not finite fails: activations may swallow a NaN (Relu's
// maximum does), so the loss does not always tell. What is checked is still in the first cache.
#include "kernels/cpu/train/train.h"

#include "base/alloc.h"
#include "device/cpu/team.h"
#include "graph/autodiff/train.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/rows.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define STEP_CHUNK 4096 // floats summed, or updated and checked, at once

typedef struct step_kernel {
    hth_kernel base;
    int n_threads, n_inputs;
    hth_op op;
    size_t n;      // elements
    size_t *sizes; // of each gradient (ClipScale)
    float low, high, max_norm;
    bool nesterov, decoupled, clip;
    char *parameter; // its name
} step_kernel;

typedef struct step_job {
    const step_kernel *k;
    void *const *in, *const *out;
    const float *hyper;
    float scale; // of gradients
    double *sum;
    atomic_bool lost; // an element became infinite, or not a number
} step_job;

// The second gradient may be absent.
HTH_VECTOR(step_relu,
           (const float *dy, const float *y, const float *more, float *dx, size_t n, float low,
            float high),
           (dy, y, more, dx, n, low, high))
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        hth_v16 d = *(const hth_v16 *)(dy + i);
        if (more != NULL) {
            d += *(const hth_v16 *)(more + i);
        }
        hth_open16(&d, (const hth_v16 *)(y + i), low, high);
        *(hth_v16 *)(dx + i) = d;
    }
    for (; i < n; i++) {
        float d = more == NULL ? dy[i] : dy[i] + more[i];
        dx[i] = y[i] > low && y[i] < high ? d : 0;
    }
}

// The steps are the same to the bit with every instruction set (the Makefile has nothing contracted
// here), and on GPUs (kernels/cuda/step.cu). The momentum buffer m may be absent.
HTH_VECTOR(step_sgd,
           (const float *p, const float *g, const float *m, float *p1, float *m1, size_t n,
            const float *hyper, float scale, bool nesterov),
           (p, g, m, p1, m1, n, hyper, scale, nesterov))
{
    float lr = hyper[HTH_HYPER_LR], beta = hyper[HTH_HYPER_BETA1], decay = hyper[HTH_HYPER_DECAY];
    if (m == NULL) {
        for (size_t i = 0; i < n; i++) {
            p1[i] = p[i] - lr * (g[i] * scale + decay * p[i]);
        }
        return;
    }
    float ahead = nesterov ? beta : 1, now = nesterov;
    for (size_t i = 0; i < n; i++) {
        float d = g[i] * scale + decay * p[i], v = beta * m[i] + d;
        p1[i] = p[i] - lr * (now * d + ahead * v);
        m1[i] = v;
    }
}

HTH_VECTOR(step_adam,
           (const float *p, const float *g, const float *m, const float *v, float *p1, float *m1,
            float *v1, size_t n, const float *hyper, float scale, bool decoupled),
           (p, g, m, v, p1, m1, v1, n, hyper, scale, decoupled))
{
    float lr = hyper[HTH_HYPER_LR], b1 = hyper[HTH_HYPER_BETA1], b2 = hyper[HTH_HYPER_BETA2];
    float eps = hyper[HTH_HYPER_EPS], decay = hyper[HTH_HYPER_DECAY];
    float rate = lr / hyper[HTH_HYPER_CORRECT1], root = 1 / sqrtf(hyper[HTH_HYPER_CORRECT2]);
    float keep = decoupled ? 1 - lr * decay : 1;
    float pull = decoupled ? 0 : decay;
    for (size_t i = 0; i < n; i++) {
        float d = g[i] * scale + pull * p[i];
        float a = b1 * m[i] + (1 - b1) * d, b = b2 * v[i] + (1 - b2) * d * d;
        p1[i] = p[i] * keep - rate * a / (sqrtf(b) * root + eps);
        m1[i] = a;
        v1[i] = b;
    }
}

static const float *step_in(const step_job *job, int i, size_t at)
{
    return job->in[i] == NULL ? NULL : (const float *)job->in[i] + at;
}

static float *step_out(const step_job *job, int i, size_t at)
{
    return (float *)job->out[i] + at;
}

typedef struct step_relu_job {
    const float *dy, *y, *more;
    float *dx;
    float low, high;
    size_t n;
} step_relu_job;

static void step_relu_part(void *arg, int i, int n)
{
    const step_relu_job *j = arg;
    size_t begin, end;
    hth_team_range(j->n, i, n, &begin, &end);
    step_relu(j->dy + begin, j->y + begin, j->more == NULL ? NULL : j->more + begin, j->dx + begin,
              end - begin, j->low, j->high);
}

void hth_cpu_relu_grad(int n_threads, const float *dy, const float *y, const float *more, float *dx,
                       size_t n, float low, float high)
{
    step_relu_job j = {dy, y, more, dx, low, high, n};
    hth_cpu_share(n_threads, n, step_relu_part, &j);
}

// *bad is not 0 where an exponent has all bits: infinite, or not a number.
HTH_VECTOR(step_bad, (const float *x, size_t n, uint32_t *bad), (x, n, bad))
{
    uint32_t any = 0, bits;
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        any |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    *bad = any;
}

static void step_chunk(const step_job *job, size_t at, size_t n)
{
    if (job->k->op == HTH_OP_SGD_STEP) {
        const float *m = step_in(job, 2, at);
        step_sgd(step_in(job, 0, at), step_in(job, 1, at), m, step_out(job, 0, at),
                 m == NULL ? NULL : step_out(job, 1, at), n, job->hyper, job->scale,
                 job->k->nesterov);
    } else {
        step_adam(step_in(job, 0, at), step_in(job, 1, at), step_in(job, 2, at),
                  step_in(job, 3, at), step_out(job, 0, at), step_out(job, 1, at),
                  step_out(job, 2, at), n, job->hyper, job->scale, job->k->decoupled);
    }
}

// A piece that was not finite before (a mask that is added to scores) may stay so.
static void step_part(void *arg, int i, int n)
{
    step_job *j = arg;
    size_t begin, end, count = j->k->n;
    hth_team_range((count + 15) / 16, i, n, &begin, &end);
    end = end * 16 < count ? end * 16 : count;
    for (size_t at = begin * 16; at < end; at += STEP_CHUNK) {
        size_t chunk = end - at < STEP_CHUNK ? end - at : STEP_CHUNK;
        uint32_t before, after;
        step_bad(step_in(j, 0, at), chunk, &before);
        step_chunk(j, at, chunk);
        step_bad(step_out(j, 0, at), chunk, &after);
        if (after > before) {
            atomic_store_explicit(&j->lost, true, memory_order_relaxed);
        }
    }
}

static hth_err step_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const step_kernel *k = (const step_kernel *)base;
    int h = k->op == HTH_OP_ADAM_STEP ? 4 : 3;
    step_job j = {.k = k, .in = args->in, .out = args->out};
    if (k->op == HTH_OP_RELU_GRAD) {
        hth_cpu_relu_grad(k->n_threads, args->in[0], args->in[1],
                          k->n_inputs > 2 ? args->in[2] : NULL, args->out[0], k->n, k->low,
                          k->high);
        return HTH_OK;
    }
    j.hyper = args->in[h];
    j.scale = j.hyper[HTH_HYPER_GRAD_SCALE] * (k->clip ? *(const float *)args->in[h + 1] : 1);
    hth_cpu_share(k->n_threads, k->n, step_part, &j);
    return !j.lost ? HTH_OK
                   : hth_fail(HTH_EINVAL, "'%s' gets elements that are not finite", k->parameter);
}

// Each thread sums the squares of its part of every gradient; parts are added in their order.
static void clip_part(void *arg, int i, int n)
{
    const step_job *j = arg;
    double sum = 0;
    for (int t = 1; t < j->k->n_inputs; t++) {
        size_t begin, end;
        hth_team_range(j->k->sizes[t], i, n, &begin, &end);
        for (size_t p = begin; p < end; p += STEP_CHUNK) {
            size_t left = end - p;
            sum += hth_row_squares(step_in(j, t, p), left < STEP_CHUNK ? left : STEP_CHUNK, 0);
        }
    }
    j->sum[i] = sum;
}

static hth_err clip_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const step_kernel *k = (const step_kernel *)base;
    const float *hyper = args->in[0];
    double *sum = args->workspace;
    double all = 0;
    step_job j = {.k = k, .in = args->in, .sum = sum};
    if (hyper[HTH_HYPER_CLIP] > 0) {
        *(float *)args->out[0] = hyper[HTH_HYPER_CLIP];
        return HTH_OK;
    }
    memset(sum, 0, k->base.workspace_bytes);
    hth_cpu_share(k->n_threads, k->n, clip_part, &j);
    for (int i = 0; i < k->n_threads; i++) {
        all += sum[i];
    }
    double norm = sqrt(all) * (double)hyper[HTH_HYPER_GRAD_SCALE];
    *(float *)args->out[0] = (float)fmin(1, (double)k->max_norm / (norm + 1e-6));
    return HTH_OK;
}

static void step_close(hth_kernel *base)
{
    step_kernel *k = (step_kernel *)base;
    hth_free(k->sizes);
    hth_free(k->parameter);
    hth_free(k);
}

// All tensors of more than the parameters' count look alike: f32, same layout, same shape.
static bool step_alike(const hth_graph *graph, const hth_node *node, int inputs)
{
    const hth_value *x = &graph->values[node->inputs[0]];
    for (int i = 0; i < inputs + node->n_outputs; i++) {
        int at = i < inputs ? node->inputs[i] : node->outputs[i - inputs];
        const hth_value *v = at < 0 ? x : &graph->values[at];
        if (v->dtype != HTH_DT_F32 || v->layout != x->layout ||
            !hth_shape_equal(&v->shape, &x->shape)) {
            return false;
        }
    }
    return true;
}

static hth_err step_make(hth_device *device, const hth_graph *graph, const hth_node *node,
                         int inputs, const char *algorithm, step_kernel *kernel, hth_kernel **out)
{
    const hth_value *x = &graph->values[node->inputs[0]];
    size_t bytes;
    if (algorithm != NULL || node->n_post > 0 || !step_alike(graph, node, inputs)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': dtype, layouts or post ops", node->name);
    }
    HTH_TRY(hth_tensor_bytes(HTH_DT_F32, &x->shape, x->layout, &bytes));
    kernel->parameter = hth_strdup(x->name != NULL ? x->name : node->name);
    if (kernel->parameter == NULL) {
        return hth_no_memory("node '%s'", node->name);
    }
    kernel->op = node->op;
    kernel->n_inputs = node->n_inputs;
    kernel->n = bytes / sizeof(float);
    kernel->n_threads = device->props.n_threads;
    kernel->base.run = step_run;
    kernel->base.close = step_close;
    kernel->base.implementation = "elements";
    hth_err err = hth_cpu_kernel_made(node, &kernel->base, sizeof *kernel, out);
    if (err != HTH_OK) {
        hth_free(kernel->parameter);
    }
    return err;
}

hth_err cpu_relu_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                              const char *algorithm, hth_kernel **out)
{
    step_kernel k = {.low = hth_node_float(node, "low", 0),
                     .high = hth_node_float(node, "high", INFINITY)};
    return step_make(device, graph, node, node->n_inputs, algorithm, &k, out);
}

hth_err cpu_step_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                         const char *algorithm, hth_kernel **out)
{
    int copy = node->op == HTH_OP_ADAM_STEP ? 3 : 2, h = copy + 1;
    if (node->n_outputs > copy && node->outputs[copy] >= 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s': a copy of the parameter in bf16", node->name);
    }
    step_kernel k = {.nesterov = hth_node_int(node, "nesterov", 0) != 0,
                     .decoupled = hth_node_int(node, "decoupled", 0) != 0,
                     .clip = node->n_inputs > h + 1 && node->inputs[h + 1] >= 0};
    return step_make(device, graph, node, h, algorithm, &k, out);
}

hth_err cpu_clip_scale_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                               const char *algorithm, hth_kernel **out)
{
    step_kernel *k = hth_calloc(1, sizeof *k);
    size_t *sizes = hth_calloc((size_t)node->n_inputs, sizeof *sizes);
    hth_err err = k == NULL || sizes == NULL ? hth_no_memory("node '%s'", node->name) : HTH_OK;
    for (int i = 1; i < node->n_inputs && err == HTH_OK; i++) {
        const hth_value *v = &graph->values[node->inputs[i]];
        err = hth_tensor_bytes(HTH_DT_F32, &v->shape, v->layout, &sizes[i]);
        sizes[i] /= sizeof(float);
        k->n += sizes[i];
        if (v->dtype != HTH_DT_F32 || algorithm != NULL || node->n_post > 0) {
            err = hth_fail(HTH_ENOTSUP, "node '%s': dtype or post ops", node->name);
        }
    }
    if (err != HTH_OK) {
        hth_free(sizes);
        hth_free(k);
        return err;
    }
    k->base = (hth_kernel){.run = clip_run,
                           .close = step_close,
                           .implementation = "elements",
                           .workspace_bytes = (size_t)device->props.n_threads * sizeof(double),
                           .inplace_input = -1};
    k->n_threads = device->props.n_threads;
    k->n_inputs = node->n_inputs;
    k->sizes = sizes;
    k->max_norm = hth_node_float(node, "max_norm", 1);
    *out = &k->base;
    return HTH_OK;
}
