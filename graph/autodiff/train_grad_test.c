// SPDX-License-Identifier: Apache-2.0
// graph/autodiff/train_grad_test.c - the gradient of every operator against central differences in
// double.
//
// A case is a line (tests/rig/grad_case.h), a model of one node; its output is compared with a
// target by the mean squared error. The step's graph is made in float32, then turned into double,
// so that the differences are exact to about 1e-8; the gradient is what one step of plain gradient
// descent with a rate of 1 takes away.
#include "graph/specialize.h"
#include "tests/rig/grad_case.h"
#include "tests/rig/train_run.h"

#include <math.h>

// Every float32 of the graph becomes float64.
static void to_double(hth_graph *graph)
{
    for (int i = 0; i < graph->n_values; i++) {
        graph->values[i].dtype =
            graph->values[i].dtype == HTH_DT_F32 ? HTH_DT_F64 : graph->values[i].dtype;
    }
}

static void check_gradients(train_run *run, const char *line)
{
    const double eps = 1e-5;
    int n_slots = run->t->n_slots;
    double *grad[MAX_OPERANDS];
    run_step(run);
    for (int s = 0; s < n_slots; s++) {
        hth_tensor *p = run_input(run, run->t->slots[s].input),
                   *q = run_output(run, run->t->slots[s].output);
        int64_t n = hth_shape_elements(&p->shape);
        grad[s] = calloc((size_t)n + 1, sizeof(double));
        for (int64_t i = 0; i < n; i++) {
            grad[s][i] = ((double *)p->data)[i] - ((double *)q->data)[i];
        }
    }
    for (int s = 0; s < n_slots; s++) {
        hth_tensor *p = run_input(run, run->t->slots[s].input);
        for (int64_t i = 0;
             i < hth_shape_elements(&p->shape) && run->t->slots[s].kind == HTH_SLOT_PARAM; i++) {
            double *x = (double *)p->data + i, at = *x;
            *x = at + eps;
            double up = run_step(run);
            *x = at - eps;
            double down = run_step(run), want = (up - down) / (2 * eps);
            *x = at;
            if (!(fabs(grad[s][i] - want) <= 2e-6 * (1 + fabs(want)))) {
                fail_msg("%s: operand %d, element %d: gradient %.9g, difference %.9g", line, s,
                         (int)i, grad[s][i], want);
            }
        }
    }
    for (int s = 0; s < n_slots; s++) {
        free(grad[s]);
    }
}

// What the step computes forward is what the operator computes.
static void check_forward(const grad_case *c, const train_run *run, const char *line)
{
    hth_stage stage;
    const void *want;
    assert_int_equal(hth_specialize(c->g, NULL, hth_ref_eval, NULL, &stage), HTH_OK);
    hth_const *k = stage.graph->values[stage.graph->outputs[0]].constant;
    const hth_tensor *y = run_output(run, run->t->first_output);
    assert_non_null(k);
    assert_true(hth_shape_equal(&k->shape, &y->shape));
    assert_int_equal(hth_const_map(k, &want), HTH_OK);
    for (int64_t i = 0; i < hth_shape_elements(&y->shape); i++) {
        double a = ((const double *)y->data)[i], b = (double)((const float *)want)[i];
        if (!(a == b || fabs(a - b) <= 1e-5 * (1 + fabs(b)))) {
            fail_msg("%s: element %d of the result is %.9g, not %.9g", line, (int)i, a, b);
        }
    }
    hth_const_unmap(k);
    hth_stage_fini(&stage);
}

static void check_case(const char *line)
{
    grad_case c = {.seed = 12345};
    hth_train_graph t;
    hth_train_options o = {.loss = HTH_LOSS_MSE, .keep_outputs = true};
    case_read(&c, line);
    int parameters = 0;
    for (int i = 0; i < c.n_in; i++) {
        parameters += c.in[i] >= 0 && c.g->values[c.in[i]].initializer > 0;
    }
    if (hth_train_build(c.g, NULL, &o, hth_ref_eval, NULL, &t) != HTH_OK) {
        fail_msg("%s: %s", line, hth_err_detail());
    }
    int trained = 0;
    for (int s = 0; s < t.n_slots; s++) {
        trained += t.slots[s].kind == HTH_SLOT_PARAM;
    }
    to_double(t.graph);
    train_run r = run_open(&t);
    double *hyper = run_input(&r, t.hyper)->data;
    hyper[HTH_HYPER_LR] = hyper[HTH_HYPER_GRAD_SCALE] = 1;
    *(uint64_t *)run_input(&r, t.step)->data = 7;
    hth_tensor *target = run_input(&r, t.target);
    for (int64_t i = 0; i < hth_shape_elements(&target->shape); i++) {
        ((double *)target->data)[i] = next_value(&c, '[') * 2;
    }
    if (strstr(line, "BatchNorm") != line && strstr(line, "Dropout") != line) {
        run_step(&r);
        check_forward(&c, &r, line);
    }
    check_gradients(&r, line);
    run_close(&r);
    hth_train_graph_fini(&t);
    hth_graph_free(c.g);
    if (trained == 0 || (trained != parameters && strstr(line, "BatchNorm") != line)) {
        fail_msg("%s: %d of %d parameters are trained", line, trained, parameters);
    }
}

// A loss of parameters x, in whole or as a part of a batch; labels are spread over `classes` (0:
// the target is numbers), and every fourth counts for nothing.
static void check_loss(const char *line, const hth_train_options *of, int64_t classes)
{
    grad_case c = {.seed = 12345};
    hth_train_graph t;
    for (int part = 0; part < 2; part++) {
        hth_train_options o = *of;
        o.phase = part == 1 ? HTH_TRAIN_APPLY : HTH_TRAIN_WHOLE;
        c = (grad_case){.seed = 12345};
        case_read(&c, line);
        if (hth_train_build(c.g, NULL, &o, hth_ref_eval, NULL, &t) != HTH_OK) {
            fail_msg("%s: %s", line, hth_err_detail());
        }
        to_double(t.graph);
        train_run r = run_open(&t);
        double *hyper = run_input(&r, t.hyper)->data;
        hyper[HTH_HYPER_LR] = hyper[HTH_HYPER_GRAD_SCALE] = 1;
        hyper[HTH_HYPER_LOSS_NORM] = 2.5;
        hth_tensor *target = run_input(&r, t.target);
        for (int64_t i = 0; i < hth_shape_elements(&target->shape); i++) {
            if (classes > 0) {
                ((int64_t *)target->data)[i] = i % 4 == 3 ? -100 : (i * 5 + 1) % classes;
            } else {
                ((double *)target->data)[i] = (double)(i % 5) / 4;
            }
        }
        check_gradients(&r, line);
        run_close(&r);
        hth_train_graph_fini(&t);
        hth_graph_free(c.g);
    }
}

static void test_losses(void **state)
{
    static const float weights[] = {1, 0.5f, 0, 2, 3};
    hth_train_options o = {.loss = HTH_LOSS_SOFTMAX_XENT};
    check_loss("Neg x[4,5]", &o, 5);
    check_loss("Neg x[2,5,3]", &o, 5);
    o.class_axis = -1;
    check_loss("Neg x[2,3,5]", &o, 5);
    o.label_smoothing = 0.3f;
    check_loss("Neg x[2,3,5]", &o, 5);
    o.weights = weights;
    o.n_weights = 5;
    check_loss("Neg x[2,3,5]", &o, 5);
    o.class_axis = 1;
    check_loss("Neg x[2,5,3]", &o, 5);
    o.label_smoothing = 0;
    check_loss("Neg x[2,5,3]", &o, 5);
    o.loss = HTH_LOSS_BCE;
    check_loss("Neg x[2,5,3]", &o, 0);
    o.class_axis = -1;
    check_loss("Neg x[3,5]", &o, 0);
    o.n_weights = 1;
    check_loss("Neg x[7]", &o, 0);
    o.weights = NULL;
    check_loss("Neg x[2,5,3]", &o, 0);
}

static void check_all(const char *const *lines)
{
    for (; *lines != NULL; lines++) {
        check_case(*lines);
    }
}

static void test_unary(void **state)
{
    static const char *const any[] = {
        "Abs",  "Atan", "Asinh", "Celu",     "Cos",       "Cosh",     "Elu",  "Erf",
        "Exp",  "Gelu", "Mish",  "Selu",     "Sigmoid",   "Sin",      "Sinh", "Softplus",
        "Relu", "Tan",  "Tanh",  "Softsign", "HardSwish", "Identity", "Neg",  "Reciprocal"};
    static const char *const positive[] = {"Log", "Sqrt", "Asin", "Acos", "Atanh"};
    char line[128];
    for (size_t i = 0; i < sizeof any / sizeof any[0]; i++) {
        snprintf(line, sizeof line, "%s x[3,4]", any[i]);
        check_case(line);
    }
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++) {
        snprintf(line, sizeof line, "%s x+[3,4]", positive[i]);
        check_case(line);
    }
    static const char *const lines[] = {
        "Acosh x^[3,4]",
        "Gelu x[3,4] ; approximate='tanh'",
        "LeakyRelu x[3,4] ; alpha=0.2",
        "Elu x[3,4] ; alpha=0.7",
        "Celu x[3,4] ; alpha=0.7",
        "HardSigmoid x[3,4] ; alpha=0.9 beta=0.4",
        "Swish x[3,4] ; alpha=1.5",
        "ThresholdedRelu x[3,4] ; alpha=0.3",
        "Shrink x[3,4] ; lambd=0.4 bias=0.2",
        "Clip x[3,4] l={-0.5} h={0.4}",
        "Clip x[3,4] - h={0.4}",
        "Clip x[3,4] l=[1]{-0.5} h={0.4}",
        "Cast x[3,4] ; to=1",
        "CastLike x[3,4] t=[1]{0}",
        "Dropout x[5,7] r={0.5}",
        "Dropout x[5,7] r={0.25} t?{1}",
        NULL,
    };
    check_all(lines);
}

static void test_binary(void **state)
{
    static const char *const lines[] = {
        "Add a[2,3] b[2,3]",
        "Add a[2,3] b[3]",
        "Add a[2,1,3] b[4,1]",
        "Sub a[2,3] b[3]",
        "Sub a[1] b[2,3]",
        "Mul a[2,3] b[2,1]",
        "Mul a[4] b[2,3,4]",
        "Div a[2,3] b+[3]",
        "Div a[3] b+[2,3]",
        "Pow a+[2,3] e={2}",
        "Pow a+[2,3] e={0.5}",
        "Pow a+[2,3] b[3]",
        "Pow a![4]{0,2,-1,0.5} e={0}",
        "Pow a[2,3] e:{2}",
        "Pow a[2,3] e:[1]{3}",
        "Pow a![2,4]{1,0,2,-1,-2,0.5,-1,0.5} e:[4]{-1,0,2,3}",
        "PRelu x[2,3,4] s[3,1]",
        "PRelu x[2,3] s[1]",
        "Sum a[2,3] b[3] c[2,1]",
        "Mod a[2,3] b=[3]{0.3,0.4,0.5} ; fmod=1",
        "Mod a[2,3] b+[3] ; fmod=1",
        "RotaryEmbedding x[1,2,3,4] c=[1,3,2]{0.1,0.2,0.3,0.4,0.5,0.6} "
        "s=[1,3,2]{0.9,0.8,0.7,0.6,0.5,0.4}",
        "RotaryEmbedding x[1,2,3,4] c=[1,3,2]{0.1,0.2,0.3,0.4,0.5,0.6} "
        "s=[1,3,2]{0.9,0.8,0.7,0.6,0.5,0.4} ; interleaved=1",
        "Mean a[2,3] b[3] c[2,1]",
        "Max a[2,3] b[3] c[2,3]",
        "Min a[2,3] b[3]",
        "Where p?[2,3]{1,0,0,1,1,0} a[2,3] b[3]",
        "Where p?[3]{1,0,1} a[1] b[2,3]",
        NULL,
    };
    check_all(lines);
}

static void test_products(void **state)
{
    static const char *const lines[] = {
        "Gemm a[3,4] b[4,2] c[2]",
        "Gemm a[4,3] b[2,4] c[3,1] ; transA=1 transB=1 alpha=0.5 beta=2.0",
        "Gemm a[3,4] b[2,4] ; transB=1",
        "Gemm a[4,3] b[4,2] ; transA=1",
        "MatMul a[3,4] b[4,2]",
        "MatMul a[2,3,4] b[4,2]",
        "MatMul a[2,3,4] b[2,4,2]",
        "MatMul a[2,1,3,4] b[3,4,2]",
        "MatMul a[3,4] b[2,4,2]",
        "MatMul a[4] b[4,2]",
        "MatMul a[3,4] b[4]",
        "MatMul a[2,3,4] b[4]",
        "MatMul a[4] b[2,4,3]",
        "MatMul a[4] b[4]",
        "MatMul a[2,4,3] b[4,2] ; transA=1",
        "MatMul a[2,3,4] b[2,4] ; transB=1",
        "MatMul a[2,4,3] b[2,2,4] ; transA=1 transB=1",
        "Einsum a[2,3,4] b[4,5] ; equation='bij,jk->bik'",
        "Einsum a[2,3] b[2,4] ; equation='bi,bj->bij'",
        "Einsum a[2,3] b[3,4] c[4,2] ; equation='ij,jk,kl->li'",
        "Einsum a[2,3] b[3,4] ; equation='ij, jk'",
        "Einsum a[2,3,4] b[3] ; equation='kji,j->i'",
        "Einsum a[2,3] ; equation='ij->j'",
        "Einsum a[2,3,4] b[4,5] ; equation='...d, de -> ...e'",
        "Einsum a[2,3,4] b[3,4,2] ; equation='b...d,...de->b...e'",
        "Einsum a[2,3,4] b[2,3,4] ; equation='...i,...i'",
        "Det x[3,3]",
        "Det x[2,2,4,4]",
        "Det x[2,1,1]",
        NULL,
    };
    check_all(lines);
}

static void test_convolution(void **state)
{
    static const char *const lines[] = {
        "Conv x[2,3,5,6] w[4,3,3,2] b[4]",
        "Conv x[1,2,5,6] w[4,2,3,3] b[4] ; strides=2,2 pads=1,1,1,1",
        "Conv x[2,4,5,5] w[6,2,3,3] ; group=2 strides=2,1 pads=1,0,1,2 dilations=1,2",
        "Conv x[2,4,5,5] w[4,1,3,3] ; group=4 pads=1,1,1,1",
        "Conv x[2,3,7] w[2,3,3] b[2] ; strides=2, pads=1,1 dilations=2,",
        "Conv x[1,2,3,4,4] w[3,2,2,2,3] b[3] ; strides=1,2,1 pads=0,1,1,1,0,1",
        "Conv x[1,2,5,5] w[2,2,3,3] ; auto_pad='SAME_UPPER' strides=2,2",
        "Conv x[1,2,6,5] w[2,2,3,2] ; auto_pad='SAME_LOWER' strides=2,2",
        "Conv x[1,2,5,5] w[2,2,3,3] ; auto_pad='VALID' strides=2,2",
        "ConvTranspose x[2,3,3,4] w[3,2,2,2] b[2] ; strides=2,2",
        "ConvTranspose x[1,4,3,3] w[4,2,3,3] b[4] ; group=2 strides=2,2 pads=1,1,1,1 "
        "output_padding=1,1",
        "ConvTranspose x[1,2,5] w[2,3,3] ; strides=2, dilations=2,",
        "ConvTranspose x[1,2,3,3] w[2,2,3,3] ; strides=2,2 auto_pad='SAME_UPPER'",
        "ConvTranspose x[1,2,3,3] w[2,2,3,3] ; strides=2,2 output_shape=6,6",
        // more behind the last window than its stride
        "ConvTranspose x[1,2,5] w[2,3,3] b[3] ; dilations=2, output_padding=1,",
        "ConvTranspose x[1,2,5] w[2,3,3] b[3] ; dilations=3, output_padding=2, pads=1,1",
        "ConvTranspose x[1,2,3,3] w[2,2,3,3] b[2] ; strides=2,2 output_shape=9,12",
        "ConvTranspose x[1,2,3,3] w[2,2,3,3] b[2] ; strides=2,2 output_padding=1,1 "
        "output_shape=5,7",
        "ConvTranspose x[1,2,3,3] w[2,2,3,3] ; strides=2,2 output_padding=1,1 "
        "auto_pad='SAME_UPPER'",
        NULL,
    };
    check_all(lines);
}

static void test_pooling(void **state)
{
    static const char *const lines[] = {
        "MaxPool x[2,2,5,6] ; kernel_shape=2,3 strides=2,1",
        "MaxPool x[1,2,5,5] ; kernel_shape=3,3 strides=2,2 pads=1,1,1,1",
        "MaxPool x[1,2,6,6] ; kernel_shape=3,3 strides=2,2 ceil_mode=1",
        "MaxPool x[1,2,7] ; kernel_shape=3, dilations=2,",
        "MaxPool x[1,1,3,4,3] ; kernel_shape=2,2,2",
        "MaxPool x[1,2,5,5] ; kernel_shape=2,2 strides=2,2 auto_pad='SAME_UPPER'",
        "MaxPool x[1,2,17,18] ; kernel_shape=16,17",
        "MaxPool x[2,2,4,4] >0/2 ; kernel_shape=2,2",
        "AveragePool x[2,2,5,6] ; kernel_shape=2,3 strides=2,1",
        "AveragePool x[1,2,5,5] ; kernel_shape=3,3 strides=2,2 pads=1,1,1,1",
        "AveragePool x[1,2,5,5] ; kernel_shape=3,3 pads=1,1,1,1 count_include_pad=1",
        "AveragePool x[1,2,6,6] ; kernel_shape=3,3 strides=2,2 ceil_mode=1",
        "GlobalAveragePool x[2,3,4,2]",
        "GlobalAveragePool x[2,3,5]",
        "GlobalMaxPool x[2,3,4,2]",
        "LpPool x[1,2,5,5] ; kernel_shape=3,3 strides=2,2 pads=1,1,1,1",
        "LpPool x[1,2,6] ; kernel_shape=2, p=3",
        "GlobalLpPool x[2,2,3,2] ; p=3",
        "LpPool x![1,1,5]{0,0,0,0.5,-1} ; kernel_shape=2,",
        "LpPool x![1,1,4]{0,0,0.5,0} ; kernel_shape=2, p=1",
        "GlobalLpPool x![1,2,2,1]{0,0,0.5,0} ; p=3",
        NULL,
    };
    check_all(lines);
}

static void test_normalisation(void **state)
{
    static const char *const lines[] = {
        "BatchNormalization x[3,2,2,3] s+[2] b[2] m=[2]{0.1,0.2} v=[2]{1,2}",
        "BatchNormalization x[4,3] s+[3] b[3] m=[3]{0,0,0} v=[3]{1,1,1} ; training_mode=1 "
        "epsilon=0.01",
        "LayerNormalization x[2,3,4] s[4] b[4]",
        "LayerNormalization x[2,3,4] s[3,4] b[3,4] ; axis=1",
        "LayerNormalization x[2,3] s[3] ; epsilon=0.1",
        "LayerNormalization x[2,3,4] s[3,1] b[4] ; axis=1",
        "LayerNormalization x[2,3,4] s[1] b[1]",
        "LayerNormalization x[2,3,4] s[4] b[4] >1/3",
        "LayerNormalization x[2,3,4] s[3,4] >2/3 ; axis=1 epsilon=0.1",
        "RMSNormalization x[2,3,4] s[4]",
        "GroupNormalization x[2,4,3] s[4] b[4] ; num_groups=2",
        "InstanceNormalization x[2,3,2,3] s[3] b[3]",
        "LRN x[1,5,2,2] ; size=3 alpha=0.5 beta=0.75 bias=1.0",
        "LRN x[1,4,2] ; size=2 alpha=0.9",
        "LpNormalization x[3,4] ; axis=1",
        "MeanVarianceNormalization x[2,2,2,3]",
        "MeanVarianceNormalization x[2,3] ; axes=1,",
        "LpNormalization x[3,4] ; axis=0 p=1",
        "Softmax x[3,4]",
        "Softmax x[2,3,4] ; axis=1",
        "Softmax x[2,3,2] ; axis=1 flatten=1",
        "LogSoftmax x[2,3,4] ; axis=-1",
        "LogSoftmax x[2,3,4] ; axis=1",
        NULL,
    };
    check_all(lines);
}

static void test_reductions(void **state)
{
    static const char *const op[] = {"Sum",       "Mean", "L1",  "L2",   "LogSum",
                                     "LogSumExp", "Max",  "Min", "Prod", "SumSquare"};
    char line[128];
    for (size_t i = 0; i < sizeof op / sizeof op[0]; i++) {
        snprintf(line, sizeof line, "Reduce%s x+[2,3,4] a:[1]{1}", op[i]);
        check_case(line);
        snprintf(line, sizeof line, "Reduce%s x+[2,3,4] a:[2]{0,-1} ; keepdims=0", op[i]);
        check_case(line);
        snprintf(line, sizeof line, "Reduce%s x+[2,3] ; keepdims=0", op[i]);
        check_case(line);
    }
    static const char *const lines[] = {
        "CumSum x[3,4] a:{1}",
        "ReduceL2 x![2,3]{0,0,0,0.5,2,-1} a:[1]{1}",
        "ReduceL2 x![2,2]{0,0,0,0} ; keepdims=0",
        "ReduceProd x![4,3]{0.5,2,-1,0,2,-1,0,0,-1,0,0,0} a:[1]{1}",
        "ReduceProd x[2,1,3] a:[1]{1} ; keepdims=0",
        "CumSum x[3,4] a:{0} ; exclusive=1",
        "CumSum x[3,4] a:{1} ; reverse=1 exclusive=1",
        "ReduceMean x[2,1,2,2,3] a:[3]{2,3,4}",
        "ReduceMean x[2,1,2,2,1,2] a:[4]{2,3,4,5}",
        NULL,
    };
    check_all(lines);
}

static void test_recurrent(void **state)
{
    static const char *const lines[] = {
        "RNN x[3,2,2] w[1,3,2] r[1,3,3] b[1,6] - h[1,2,3]",
        "RNN x[3,2,2] w[2,3,2] r[2,3,3] b[2,6] ; direction='bidirectional'",
        "LSTM x[3,2,2] w[1,8,2] r[1,8,2] b[1,16] - h[1,2,2] c[1,2,2]",
        "LSTM x[3,2,2] w[2,8,2] r[2,8,2] b[2,16] ; direction='bidirectional'",
        "LSTM x[3,2,2] w[1,8,2] r[1,8,2] - - h[1,2,2] c[1,2,2] >1/3",
        "LSTM x[3,2,2] w[1,8,2] r[1,8,2] - - h[1,2,2] c[1,2,2] >2/3 ; direction='reverse'",
        "GRU x[3,2,2] w[1,6,2] r[1,6,2] b[1,12] - h[1,2,2]",
        "GRU x[3,2,2] w[1,6,2] r[1,6,2] b[1,12] - h[1,2,2] ; linear_before_reset=1",
        "GRU x[2,3,2] w[2,6,2] r[2,6,2] b[2,12] ; direction='bidirectional' layout=1",
        NULL,
    };
    check_all(lines);
}

// Inside, at borders of pixels, and outside of the image.
static void test_sampling(void **state)
{
    static const char *const padding[] = {"zeros", "border", "reflection"}, *const mode[] = {
                                                                                "linear", "cubic",
                                                                                "nearest"};
    char line[256];
    for (int i = 0; i < 18; i++) {
        snprintf(line, sizeof line,
                 "GridSample x[2,2,3,4] g%s ; mode='%s' padding_mode='%s' align_corners=%d",
                 i % 3 == 2 ? "=[2,1,2,2]{0.2,-0.7,1.4,0.3,-1.2,0.9,0.1,0.1}" : "^[2,2,2,2]",
                 mode[i % 3], padding[i / 3 % 3], i / 9);
        check_case(line);
        snprintf(line, sizeof line,
                 "GridSample x[1,2,3,4] g[1,3,2,2] ; mode='%s' "
                 "padding_mode='%s' align_corners=%d",
                 mode[i % 2], padding[i / 3 % 3], i / 9);
        check_case(line);
    }
    check_case("GridSample x[1,2,5] g[1,4,1]");
    check_case("GridSample x[1,1,3,3,2] g[1,2,1,2,3] ; padding_mode='border'");
}

static void test_attention(void **state)
{
    static const char *const lines[] = {
        "Attention q[2,2,3,4] k[2,2,5,4] v[2,2,5,3]",
        "Attention q[2,3,8] k[2,5,8] v[2,5,6] ; q_num_heads=2 kv_num_heads=2",
        "Attention q[2,3,8] k[2,4,4] v[2,4,6] ; q_num_heads=4 kv_num_heads=2 scale=0.3",
        "Attention q[1,4,3,2] k[1,2,3,2] v[1,2,3,2] ; is_causal=1",
        "Attention q[1,2,4,3] k[1,2,4,3] v[1,2,4,2] ; softcap=0.5 is_causal=1",
        "Attention q[1,2,3,2] k[1,2,3,2] v[1,2,3,2] m[3,3]",
        "Attention q[2,2,3,2] k[2,2,4,2] v[2,2,4,2] m[2,1,1,4] ; is_causal=1",
        "Attention q[1,2,3,2] k[1,2,3,2] v[1,2,3,2] m?[3,3]{1,0,1,0,0,0,1,1,0}",
        "Attention q[1,2,3,2] k[1,2,4,2] v[1,2,4,2] m?[3,2]{1,1,0,1,0,0}",
        "Attention q[1,2,3,2] k[1,2,4,2] v[1,2,4,2] m[3,2]",
        "Attention q[1,1,3,2] k[1,1,3,2] v[1,1,3,2] m={0.5}",
        "Attention q[1,2,2,2] k[1,2,3,2] v[1,2,3,2] - p[1,2,2,2] r[1,2,2,2] ; is_causal=1",
        "Attention q=[1,2,2,2] k[1,2,3,2] v=[1,2,3,2] - p[1,2,2,2] r=[1,2,2,2] >1/3",
        "Attention q=[1,2,2,2] k=[1,2,3,2] v[1,2,3,2] - p=[1,2,2,2] r[1,2,2,2] >2/3",
        "Attention q[2,2,3,2] k[2,2,4,2] v[2,2,4,2] - - - l:[2]{4,2}",
        "Attention q[2,2,3,2] k[2,2,4,2] v[2,2,4,2] - - - l:[2]{4,2} ; is_causal=1",
        "Attention q[2,1,3,2] k[2,1,5,2] v[2,1,5,2] - - - l:[2]{5,3} ; left_window_size=1 "
        "right_window_size=0",
        "Attention q[1,1,5,2] k[1,1,5,2] v[1,1,5,2] ; left_window_size=1 right_window_size=2",
        "Attention q[1,1,5,2] k[1,1,2,2] v[1,1,2,2] ; left_window_size=1 right_window_size=0",
        "Attention q[1,2,3,2] k[1,2,3,2] v=[1,2,3,2] >3/4",
        "Attention q[1,2,3,2] k[1,2,3,2] v=[1,2,3,2] >3/4 ; qk_matmul_output_mode=1 softcap=0.7",
        "Attention q[1,2,3,2] k[1,2,3,2] v=[1,2,3,2] m[3,3] >3/4 ; qk_matmul_output_mode=2",
        "Attention q[1,2,3,2] k[1,2,3,2] v=[1,2,3,2] m?[3,3]{1,0,1,0,0,0,1,1,0} >3/4 ; "
        "qk_matmul_output_mode=3",
        NULL,
    };
    check_all(lines);
}

static void test_shapes(void **state)
{
    static const char *const lines[] = {
        "Reshape x[2,6] s:[2]{3,4}",
        "Flatten x[2,3,2]",
        "Squeeze x[2,1,3] a:[1]{1}",
        "Unsqueeze x[2,3] a:[1]{1}",
        "Transpose x[2,3,4] ; perm=2,0,1",
        "Transpose x[2,3]",
        "Expand x[2,1,3] s:[4]{2,2,4,3}",
        "Tile x[2,3] r:[2]{2,3}",
        "Concat a[2,3] b[2,1] c[2,2] ; axis=1",
        "Concat a[2,3] b[1,3] ; axis=-2",
        "Split x[2,6] s:[3]{1,2,3} >1/3 ; axis=1",
        "Split x[4,2] s:[2]{2,2} >0/2",
        "Slice x[4,5] s:[1]{1} e:[1]{3}",
        "Slice x[4,5] s:[2]{-3,4} e:[2]{9,-9} a:[2]{0,1} t:[2]{2,-1}",
        "Slice x[7] s:[1]{-1} e:[1]{0} a:[1]{0} t:[1]{-3}",
        "Slice x[5,7] s:[2]{1,6} e:[2]{9,-99} a:[2]{0,1} "
        "t:[2]{2305843009213693952,-9223372036854775808}",
        "Pad x[2,3] p:[4]{1,0,2,1}",
        "Pad x[2,3] p:[4]{0,-1,1,2} v={0.5}",
        "Pad x[3,4] p:[4]{2,1,1,2} ; mode='reflect'",
        "Pad x[3,4] p:[4]{2,1,1,2} ; mode='edge'",
        "Pad x[3,4] p:[4]{2,1,1,2} ; mode='wrap'",
        "Pad x[3,4] p:[2]{1,2} - a:[1]{1}",
        "DepthToSpace x[1,8,2,2] ; blocksize=2",
        "DepthToSpace x[1,8,2,2] ; blocksize=2 mode='CRD'",
        "SpaceToDepth x[1,2,4,4] ; blocksize=2",
        "Trilu x[3,4] k:{1} ; upper=0",
        "Trilu x[2,3,3]",
        "ReverseSequence x[4,2,2] l:[2]{3,2}",
        "Resize x[1,2,3,3] - s=[4]{1,1,2,2}",
        "Resize x[1,2,3,4] - s=[4]{1,1,2,1.5} ; mode='linear'",
        "Resize x[1,1,4,4] - - z:[4]{1,1,7,3} ; mode='linear' "
        "coordinate_transformation_mode='align_corners'",
        "Resize x[1,1,4,4] - - z:[4]{1,1,6,6} ; mode='cubic'",
        "Upsample x[1,2,2,3] s=[4]{1,1,2,2}",
        NULL,
    };
    check_all(lines);
}

static void test_indices(void **state)
{
    static const char *const lines[] = {
        "Gather x[4,3] i:[5]{0,2,2,-1,0}",
        "Gather x[2,4,3] i:[2,2]{3,1,1,0} ; axis=1",
        "Gather x[3,4] i:{1} ; axis=-1",
        "GatherElements x[3,4] i:[2,4]{0,1,2,0,2,1,0,0} ; axis=0",
        "GatherND x[3,4] i:[3,1]{2,0,2}",
        "GatherND x[3,4] i:[2,2]{2,1,2,1}",
        "Scatter x[3,4] i:[1,4]{0,1,2,0} u[1,4] ; axis=0",
        "ScatterElements x[3,4] i:[1,4]{0,1,2,0} u[1,4] ; axis=0",
        "ScatterElements x[3,4] i:[3,2]{0,0,2,3,1,1} u[3,2] ; axis=1 reduction='add'",
        "GatherND x[2,3,4] i:[2,2]{2,1,0,0} ; batch_dims=1",
        "GatherND x[2,3,4] i:[2,2,1]{2,1,0,0} ; batch_dims=1",
        "GatherND x[2,2,3] i:[2,2,2,1]{2,1,0,0,1,1,2,0} ; batch_dims=2",
        "Compress x[3,4] k?[3]{1,0,1} ; axis=0",
        "Compress x[3,4] k?[3]{0,1,1} ; axis=-1",
        "Compress x[3,4] k?[6]{1,0,0,1,1,0}",
        "ScatterND x[4,3] i:[2,1]{3,1} u[2,3]",
        "ScatterND x[4,3] i:[2,1]{1,1} u[2,3] ; reduction='add'",
        "ScatterElements x[3,4] i:[2,4]{0,1,2,0,0,1,2,1} u[2,4] ; axis=0 reduction='max'",
        "ScatterND x[4,3] i:[3,1]{1,1,2} u[3,3] ; reduction='min'",
        "ScatterElements x[3,4] i:[2,4]{0,1,2,0,0,1,2,1} u[2,4] ; axis=0 reduction='mul'",
        "ScatterND x[4,3] i:[3,1]{1,1,2} u[3,3] ; reduction='mul'",
        "TopK x[3,5] k:[1]{2} >0/2",
        NULL,
    };
    check_all(lines);
}

// Operators of floats whose derivative is 0 or does not exist, as in PyTorch: no gradient goes
// through, and what lies before them is not trained.
static void test_flat(void **state)
{
    static const char *const lines[] = {
        "Ceil x[3,4]",
        "Floor x[3,4]",
        "Round x[3,4]",
        "Sign x[3,4]",
        "Hardmax x[3,4]",
        "EyeLike x[3,4]",
        "Shape x[3,4]",
        "Size x[3,4]",
        "ArgMax x[3,4]",
        "ArgMin x[3,4]",
        "Equal a[2,3] b[3]",
        "Greater a[2,3] b[3]",
        "GreaterOrEqual a[2,3] b[3]",
        "Less a[2,3] b[3]",
        "LessOrEqual a[2,3] b[3]",
        "IsInf x[3,4]",
        "IsNaN x[3,4]",
        "OneHot i:[3]{0,2,1} d:{3} v[2]",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        grad_case c = {.seed = 1};
        hth_train_graph t;
        hth_train_options o = {.loss = HTH_LOSS_MSE};
        case_read(&c, lines[i]);
        if (hth_train_build(c.g, NULL, &o, hth_ref_eval, NULL, &t) != HTH_ENOTSUP ||
            strstr(hth_err_detail(), "nothing to train") == NULL) {
            fail_msg("%s: %s", lines[i], hth_err_detail());
        }
        hth_graph_free(c.g);
    }
}

// Every operator that is imported has a case above, but those that make no floats from floats.
// What a file may say, but nobody can train.
static void test_refused(void **state)
{
    static const char *const row[][2] = {
        {"Dropout x[5,7] r={-1}", "node 'node' (Dropout): its ratio is -1, not between 0 and 1"},
        {"Dropout x[5,7] r={1e30}",
         "node 'node' (Dropout): its ratio is 1e+30, not between 0 and 1"},
        {"Dropout x[5,7] r={nan}", "node 'node' (Dropout): its ratio is nan, not between 0 and 1"},
        {"AveragePool x[1,1,5] ; kernel_shape=9223372036854775807, auto_pad='SAME_UPPER'",
         "node 'node' (AveragePool): the result has too many elements"},
        {"ConvTranspose x[1,2,3] w[2,1,2] ; strides=9223372036854775807, output_shape=6,",
         "node 'node' (ConvTranspose): the result has too many elements"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        grad_case c = {.seed = 12345};
        hth_train_graph t;
        hth_train_options o = {.loss = HTH_LOSS_MSE};
        case_read(&c, row[i][0]);
        assert_int_not_equal(hth_train_build(c.g, NULL, &o, hth_ref_eval, NULL, &t), HTH_OK);
        assert_string_equal(hth_err_detail(), row[i][1]);
        hth_graph_free(c.g);
    }
}

static void test_every_operator(void **state)
{
    static const hth_op without[] = {
        HTH_OP_AND,
        HTH_OP_OR,
        HTH_OP_XOR,
        HTH_OP_NOT,
        HTH_OP_BIT_SHIFT,
        HTH_OP_BITWISE_AND,
        HTH_OP_BITWISE_NOT,
        HTH_OP_BITWISE_OR,
        HTH_OP_BITWISE_XOR,
        HTH_OP_NON_ZERO,
        HTH_OP_CONSTANT,
        HTH_OP_NON_MAX_SUPPRESSION,
        HTH_OP_RANGE, // of scalars, which are not trained
        HTH_OP_CONSTANT_OF_SHAPE,
        HTH_OP_QUANTIZE_LINEAR, // the importer says these with others
        HTH_OP_DEQUANTIZE_LINEAR,
        HTH_OP_QLINEAR_CONV,
        HTH_OP_QLINEAR_MAT_MUL,
        HTH_OP_CONV_INTEGER,
        HTH_OP_MAT_MUL_INTEGER,
        HTH_OP_DYNAMIC_QUANTIZE_LINEAR,
    };
    int with = 0;
    for (hth_op op = HTH_OP_NONE + 1; op < HTH_N_OPS; op++) {
        bool expected = hth_op_info_of(op)->n_since > 0;
        for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
            expected = expected && without[i] != op;
        }
        if (expected != grad_seen[op]) {
            fail_msg("%s: %s", hth_op_name(op), expected ? "has no case" : "has a case");
        }
        with += expected;
    }
    assert_true(with > 130);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),      cmocka_unit_test(test_binary),
        cmocka_unit_test(test_products),   cmocka_unit_test(test_convolution),
        cmocka_unit_test(test_pooling),    cmocka_unit_test(test_normalisation),
        cmocka_unit_test(test_reductions), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_indices),    cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_sampling),   cmocka_unit_test(test_attention),
        cmocka_unit_test(test_flat),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_losses),     cmocka_unit_test(test_every_operator),
    };
    return cmocka_run_group_tests_name("train_grad", tests, NULL, NULL);
}
