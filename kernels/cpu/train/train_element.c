// SPDX-License-Identifier: Apache-2.0
// ElementGrad: dy * f'(z) of the activations that models use much; the others are left to the
// reference. Tensors are seen as they lie in memory; dy's padding is zero, and every slope there is
// finite, so the padding stays zero. In place on dy.
#include "kernels/cpu/train/train.h"

#include "device/cpu/team.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vector.h"

typedef struct slope_kernel {
    hth_kernel base;
    int n_threads;
    hth_op of;
    float a, b; // the forward operator's attributes
    size_t n;
} slope_kernel;

typedef struct slope_job {
    const slope_kernel *k;
    const float *dy, *z;
    float *dx;
} slope_job;

HTH_INLINE float slope_gelu(float x)
{
    return 0.5F * (1.0F + hth_erff(x * 0.70710678118654752F)) +
           x * hth_expf(-0.5F * x * x) * 0.39894228040143268F;
}

HTH_INLINE float slope_gelu_tanh(float x)
{
    const float k = 0.79788456080286536F, c = 0.044715F;
    float t = hth_tanhf(k * (x + c * x * x * x));
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * k * (1.0F + 3.0F * c * x * x);
}

HTH_INLINE float slope_swish(float z, float a)
{
    float s = hth_sigmoidf(a * z);
    return s * (1.0F + a * z * (1.0F - s));
}

HTH_INLINE float slope_hard_swish(float z)
{
    float inside = z < 3.0F ? z * (1.0F / 3.0F) + 0.5F : 1.0F;
    return z <= -3.0F ? 0.0F : inside;
}

HTH_INLINE float slope_abs(float z)
{
    float low = z < 0 ? -1.0F : 0.0F;
    return z > 0 ? 1.0F : low;
}

// SLOPES(X): X(operator, slope at z with attributes a, b)
#define SLOPES(X)                                                                                  \
    X(SIGMOID, z *(1.0F - z))                                                                      \
    X(TANH, 1.0F - z * z)                                                                          \
    X(EXP, z)                                                                                      \
    X(GELU, a != 0 ? slope_gelu_tanh(z) : slope_gelu(z))                                           \
    X(SWISH, slope_swish(z, a))                                                                    \
    X(HARD_SWISH, slope_hard_swish(z))                                                             \
    X(HARD_SIGMOID, a *z + b > 0 && a * z + b < 1.0F ? a : 0.0F)                                   \
    X(LEAKY_RELU, z > 0 ? 1.0F : a)                                                                \
    X(ELU, z > 0 ? 1.0F : a * hth_expf(z))                                                         \
    X(SOFTPLUS, hth_sigmoidf(z))                                                                   \
    X(ABS, slope_abs(z))                                                                           \
    X(ERF, hth_expf(-z *z) * 1.1283791670955126F)

HTH_VECTOR(slope_run_range,
           (hth_op of, const float *dy, const float *x, float *dx, size_t n, float a, float b),
           (of, dy, x, dx, n, a, b))
{
    switch (of) {
#define SLOPE_CASE(OP, EXPR)                                                                       \
    case HTH_OP_##OP:                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            float z = x[i];                                                                        \
            dx[i] = dy[i] * (EXPR);                                                                \
        }                                                                                          \
        break;
        SLOPES(SLOPE_CASE)
    default:
        break;
    }
}

static bool slope_known(hth_op of)
{
    switch (of) {
#define SLOPE_NAME(OP, EXPR) case HTH_OP_##OP:
        SLOPES(SLOPE_NAME)
        return true;
    default:
        return false;
    }
}

static void slope_part(void *arg, int i, int n)
{
    const slope_job *j = arg;
    size_t begin, end;
    hth_team_range(j->k->n, i, n, &begin, &end);
    slope_run_range(j->k->of, j->dy + begin, j->z + begin, j->dx + begin, end - begin, j->k->a,
                    j->k->b);
}

static hth_err slope_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const slope_kernel *k = (const slope_kernel *)base;
    slope_job j = {k, args->in[0], args->in[1], args->out[0]};
    hth_cpu_share(k->n_threads, k->n * 4, slope_part, &j);
    return HTH_OK;
}

hth_err cpu_element_grad_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                                 const char *algorithm, hth_kernel **out)
{
    slope_kernel k = {.n_threads = device->props.n_threads,
                      .of = hth_op_find(hth_node_str(node, "of", "")),
                      .b = hth_node_float(node, "beta", 0.5F)};
    k.a = hth_cpu_alpha(node, k.of);
    if (k.of == HTH_OP_GELU) {
        k.a = hth_node_str(node, "approximate", "none")[0] == 't';
    }
    const hth_value *x = &graph->values[node->inputs[0]];
    bool alike = algorithm == NULL && node->n_post == 0 && slope_known(k.of);
    for (int i = 0; i < 3; i++) {
        const hth_value *v = &graph->values[i < 2 ? node->inputs[i] : node->outputs[0]];
        alike = alike && v->dtype == HTH_DT_F32 && v->layout == x->layout &&
                hth_shape_equal(&v->shape, &x->shape);
    }
    size_t bytes;
    if (!alike) {
        return hth_fail(HTH_ENOTSUP, "node '%s': operator, dtype or layout", node->name);
    }
    HTH_TRY(hth_tensor_bytes(HTH_DT_F32, &x->shape, x->layout, &bytes));
    k.n = bytes / sizeof(float);
    k.base = (hth_kernel){.run = slope_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "elements",
                          .inplace_input = 0};
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}
