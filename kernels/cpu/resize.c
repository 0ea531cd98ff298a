// SPDX-License-Identifier: Apache-2.0
// Resize over the spatial dimensions of images ([N, C, H, W], also [N, C, W]), nearest and linear.
// What each output coordinate reads is a small table per dimension: two source indices and a weight
// (nearest: weight 0), so that all coordinate rules of ONNX cost the same. Each run makes the
// tables anew in its workspace: a model names lengths as it likes, and what is kept for each of its
// nodes would be planned by nobody. ResizeGrad walks the same tables: a thread zeroes a plane of dx
// and adds each gradient to where its output was read, always in the same order.
#include "kernels/cpu/blocked.h"
#include "kernels/cpu/plain.h"

#include "base/alloc.h"
#include "device/cpu/team.h"

#include <math.h>
#include <string.h>

#define RESIZE_TAP 8 // operations to make one

typedef struct resize_tap {
    uint32_t first, second; // source coordinates
    float weight;           // of the second
} resize_tap;

enum coordinates { HALF_PIXEL, PYTORCH_HALF_PIXEL, ASYMMETRIC, ALIGN_CORNERS, N_COORDINATES };
static const char *const coordinate_names[] = {"half_pixel", "pytorch_half_pixel", "asymmetric",
                                               "align_corners"};
enum nearest { PREFER_FLOOR, PREFER_CEIL, FLOOR, CEIL, N_NEAREST };
static const char *const nearest_names[] = {"round_prefer_floor", "round_prefer_ceil", "floor",
                                            "ceil"};

typedef struct resize_kernel {
    hth_kernel base;
    int n_threads;
    bool linear, grad;
    enum coordinates coordinates;
    enum nearest nearest;
    double scale_h, scale_w;
    hth_rows rows; // of the resized tensor
    size_t in_h, in_w, out_h, out_w;
} resize_kernel;

typedef struct resize_job {
    const resize_kernel *k;
    const float *x;
    float *y;
    resize_tap *h, *w; // the tables, out_h and out_w of them
} resize_job;

static inline __attribute__((always_inline)) void resize_line(const resize_kernel *kernel,
                                                              const resize_tap *tap,
                                                              const float *top, const float *bottom,
                                                              float v, float *y, size_t B)
{
    for (size_t i = 0; i < kernel->out_w && !kernel->linear; i++) {
        for (size_t l = 0; l < B; l++) {
            y[i * B + l] = top[tap[i].first * B + l];
        }
    }
    for (size_t i = 0; i < kernel->out_w && kernel->linear; i++) {
        const float *a = top + tap[i].first * B, *b = top + tap[i].second * B;
        const float *c = bottom + tap[i].first * B, *d = bottom + tap[i].second * B;
        float u = tap[i].weight;
        for (size_t l = 0; l < B; l++) {
            float upper = a[l] + u * (b[l] - a[l]), lower = c[l] + u * (d[l] - c[l]);
            y[i * B + l] = upper + v * (lower - upper);
        }
    }
}

static void resize_part(void *arg, int i, int n)
{
    const resize_job *j = arg;
    const resize_kernel *k = j->k;
    size_t begin, end, b = k->rows.b;
    hth_team_range(k->rows.n * k->rows.blocks * k->out_h, i, n, &begin, &end);
    for (size_t line = begin; line < end; line++) {
        const resize_tap *t = &j->h[line % k->out_h];
        const float *image = j->x + line / k->out_h * k->in_h * k->in_w * b;
        const float *top = image + t->first * k->in_w * b,
                    *bottom = image + t->second * k->in_w * b;
        float *y = j->y + line * k->out_w * b;
        if (b == 16) {
            resize_line(k, j->w, top, bottom, t->weight, y, 16);
        } else if (b == 8) {
            resize_line(k, j->w, top, bottom, t->weight, y, 8);
        } else {
            resize_line(k, j->w, top, bottom, t->weight, y, 1);
        }
    }
}

// What output line i read from lines `top` and `bottom` gets its share of dy.
static inline __attribute__((always_inline)) void grad_line(const resize_kernel *kernel,
                                                            const resize_tap *tap, const float *dy,
                                                            float v, float *top, float *bottom,
                                                            size_t B)
{
    for (size_t i = 0; i < kernel->out_w; i++, tap++) {
        float u = tap->weight;
        for (size_t l = 0; l < B; l++) {
            float g = dy[i * B + l], lower = v * g, upper = g - lower;
            if (!kernel->linear) {
                top[tap->first * B + l] += g;
                continue;
            }
            top[tap->first * B + l] += (1 - u) * upper;
            top[tap->second * B + l] += u * upper;
            bottom[tap->first * B + l] += (1 - u) * lower;
            bottom[tap->second * B + l] += u * lower;
        }
    }
}

static void grad_part(void *arg, int i, int n)
{
    const resize_job *j = arg;
    const resize_kernel *k = j->k;
    size_t begin, end, b = k->rows.b, in_row = k->in_w * b, out_row = k->out_w * b;
    hth_team_range(k->rows.n * k->rows.blocks, i, n, &begin, &end);
    for (size_t plane = begin; plane < end; plane++) {
        const float *dy = j->x + plane * k->out_h * out_row;
        float *dx = j->y + plane * k->in_h * in_row;
        memset(dx, 0, k->in_h * in_row * sizeof *dx);
        for (size_t line = 0; line < k->out_h; line++, dy += out_row) {
            const resize_tap *t = &j->h[line];
            float *top = dx + t->first * in_row, *bottom = dx + t->second * in_row;
            if (b == 16) {
                grad_line(k, j->w, dy, t->weight, top, bottom, 16);
            } else if (b == 8) {
                grad_line(k, j->w, dy, t->weight, top, bottom, 8);
            } else {
                grad_line(k, j->w, dy, t->weight, top, bottom, 1);
            }
        }
    }
}

// The source coordinate of output coordinate x (ONNX Resize, coordinate_transformation_mode).
// The resized length that it speaks of is scale * in, before it was rounded to whole elements.
static double resize_source(enum coordinates mode, double x, double scale, double in)
{
    double out = scale * in;
    if (mode == ASYMMETRIC) {
        return x / scale;
    }
    if (mode == ALIGN_CORNERS) {
        return out != 1 ? x * (in - 1) / (out - 1) : 0;
    }
    if (mode == PYTORCH_HALF_PIXEL && out <= 1) {
        return 0;
    }
    return (x + 0.5) / scale - 0.5;
}

static double resize_nearest(enum nearest mode, double x)
{
    switch (mode) {
    case CEIL:
        return ceil(x);
    case FLOOR:
        return floor(x);
    case PREFER_CEIL:
        return floor(x + 0.5);
    default:
        return ceil(x - 0.5);
    }
}

static void resize_taps(const resize_kernel *kernel, size_t in, double scale, size_t begin,
                        size_t end, resize_tap *tap)
{
    for (size_t i = begin; i < end; i++) {
        double x = resize_source(kernel->coordinates, (double)i, scale, (double)in);
        double top = (double)in - 1;
        x = fmin(fmax(kernel->linear ? x : resize_nearest(kernel->nearest, x), 0), top);
        tap[i].first = (uint32_t)x;
        tap[i].second = (uint32_t)fmin(floor(x) + 1, top);
        tap[i].weight = (float)(x - floor(x));
    }
}

static void resize_tables(void *arg, int i, int n)
{
    const resize_job *j = arg;
    const resize_kernel *k = j->k;
    size_t begin, end;
    hth_team_range(k->out_h, i, n, &begin, &end);
    resize_taps(k, k->in_h, k->scale_h, begin, end, j->h);
    hth_team_range(k->out_w, i, n, &begin, &end);
    resize_taps(k, k->in_w, k->scale_w, begin, end, j->w);
}

static hth_err resize_run(const hth_kernel *base, const hth_kernel_args *args)
{
    const resize_kernel *k = (const resize_kernel *)base;
    resize_job j = {k, args->in[0], args->out[0], args->workspace, NULL};
    j.w = j.h + k->out_h;
    hth_cpu_share(k->n_threads, (k->out_h + k->out_w) * RESIZE_TAP, resize_tables, &j);
    hth_team_set(k->n_threads);
    hth_team_run(k->grad ? grad_part : resize_part, &j);
    return HTH_OK;
}

// The factor of dimension `dim`: as the node says it, or from the sizes.
static double resize_scale(const hth_graph *graph, const hth_node *node, int dim, double from_sizes)
{
    int at = node->n_inputs > 2 ? 2 : 1; // Upsample has (x, scales)
    const hth_const *c = node->n_inputs > at && node->inputs[at] >= 0
                             ? graph->values[node->inputs[at]].constant
                             : NULL;
    bool whole = c != NULL && c->data != NULL && c->dtype == HTH_DT_F32 &&
                 c->bytes == sizeof(float) * (size_t)graph->values[node->inputs[0]].shape.rank;
    return whole ? (double)((const float *)c->data)[dim] : from_sizes;
}

// The image that is or was resized, and what became of it: ResizeGrad goes from the second to the
// first.
static const hth_value *resize_image(const hth_graph *graph, const hth_node *node)
{
    return &graph->values[node->op == HTH_OP_RESIZE_GRAD ? node->outputs[0] : node->inputs[0]];
}

static const hth_value *resize_result(const hth_graph *graph, const hth_node *node)
{
    return &graph->values[node->op == HTH_OP_RESIZE_GRAD ? node->inputs[0] : node->outputs[0]];
}

// Taps are numbers of 32 bits, and each needs an element to be one of.
static bool resize_counts(const hth_shape *shape)
{
    for (int i = 2; i < shape->rank; i++) {
        if (shape->dim[i] < 1 || shape->dim[i] > UINT32_MAX) {
            return false;
        }
    }
    return hth_shape_elements(shape) > 0;
}

// Which of the names the attribute has, the first where it is missing; n: another.
static int resize_named(const hth_node *node, const char *attr, const char *const *name, int n)
{
    const char *given = hth_node_str(node, attr, name[0]);
    int i = 0;
    while (i < n && strcmp(name[i], given) != 0) {
        i++;
    }
    return i;
}

static bool resize_takes(const hth_graph *graph, const hth_node *node)
{
    const hth_shape *x = &resize_image(graph, node)->shape, *y = &resize_result(graph, node)->shape;
    const char *mode = hth_node_str(node, "mode", "nearest");
    return resize_named(node, "coordinate_transformation_mode", coordinate_names, N_COORDINATES) <
               N_COORDINATES &&
           (strcmp(mode, "nearest") == 0 || strcmp(mode, "linear") == 0) && node->n_post == 0 &&
           graph->values[node->inputs[0]].dtype == HTH_DT_F32 && (x->rank == 3 || x->rank == 4) &&
           x->dim[0] == y->dim[0] && x->dim[1] == y->dim[1] &&
           hth_node_attr(node, "axes") == NULL && hth_node_int(node, "antialias", 0) == 0 &&
           resize_counts(x) && resize_counts(y) &&
           strcmp(hth_node_str(node, "keep_aspect_ratio_policy", "stretch"), "stretch") == 0;
}

// What the node's attributes say, and its scales.
static void resize_read(resize_kernel *kernel, const hth_graph *graph, const hth_node *node,
                        int last)
{
    int nearest = resize_named(node, "nearest_mode", nearest_names, N_NEAREST);
    kernel->nearest = nearest < N_NEAREST ? (enum nearest)nearest : PREFER_FLOOR;
    kernel->coordinates = (enum coordinates)resize_named(node, "coordinate_transformation_mode",
                                                         coordinate_names, N_COORDINATES);
    kernel->linear = strcmp(hth_node_str(node, "mode", "nearest"), "linear") == 0;
    kernel->grad = node->op == HTH_OP_RESIZE_GRAD;
    kernel->scale_h = (double)kernel->out_h / (double)kernel->in_h;
    kernel->scale_h = last == 3 ? resize_scale(graph, node, 2, kernel->scale_h) : kernel->scale_h;
    kernel->scale_w = resize_scale(graph, node, last, (double)kernel->out_w / (double)kernel->in_w);
}

hth_err cpu_resize_prepare(hth_device *device, const hth_graph *graph, const hth_node *node,
                           const char *algorithm, hth_kernel **out)
{
    const hth_value *x = resize_image(graph, node), *y = resize_result(graph, node);
    resize_kernel k = {.n_threads = device->props.n_threads};
    if (algorithm != NULL || !resize_takes(graph, node) || x->layout != y->layout ||
        !hth_rows_of(&y->shape, y->layout, &k.rows)) {
        return hth_fail(HTH_ENOTSUP, "node '%s': mode, axes or layout", node->name);
    }
    int last = x->shape.rank - 1;
    k.in_h = last == 3 ? (size_t)x->shape.dim[2] : 1;
    k.out_h = last == 3 ? (size_t)y->shape.dim[2] : 1;
    k.in_w = (size_t)x->shape.dim[last];
    k.out_w = (size_t)y->shape.dim[last];
    resize_read(&k, graph, node, last);
    k.base = (hth_kernel){.run = resize_run,
                          .close = hth_cpu_kernel_free,
                          .implementation = "resize",
                          .workspace_bytes = (k.out_h + k.out_w) * sizeof(resize_tap),
                          .inplace_input = -1};
    return hth_cpu_kernel_made(node, &k.base, sizeof k, out);
}

hth_layout cpu_resize_layout(hth_device *device, const hth_graph *graph, const hth_node *node,
                             bool *any)
{
    *any = resize_takes(graph, node);
    return HTH_LAYOUT_PLAIN;
}
