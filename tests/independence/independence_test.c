// SPDX-License-Identifier: Apache-2.0
// Wherever samples are proven independent, joined equals alone: ONNX's node tests with every choice
// of inputs that hold samples, and graphs that nearly have a proof.
#include "tests/independence/alone.h"
#include "tests/rig/ref_cases.h"

// ---- ONNX's node tests

// A batch of the case's rows, at least 3 of them: more are made from those that there are.
static hth_tensor widen(const hth_tensor *tensor, int64_t samples)
{
    hth_tensor w = *tensor;
    size_t row = tensor->bytes / (size_t)tensor->shape.dim[0];
    w.shape.dim[0] = samples;
    w.bytes = row * (size_t)samples;
    w.data = hth_alloc_aligned(w.bytes + 64, 64);
    assert_non_null(w.data);
    for (int64_t i = 0; i < samples; i++) {
        char *to = (char *)w.data + (size_t)i * row;
        memcpy(to, (char *)tensor->data + (size_t)(i % tensor->shape.dim[0]) * row, row);
        for (size_t k = 0; k < row / sizeof(float) && i >= tensor->shape.dim[0]; k++) {
            float f;
            memcpy(&f, to + k * sizeof f, sizeof f);
            f = f * -0.75F + 0.125F * (float)i;
            if (tensor->dtype == HTH_DT_F32) {
                memcpy(to + k * sizeof f, &f, sizeof f);
            }
        }
    }
    return w;
}

// case_graph makes a model of the case: inputs in `mask` hold samples, the others are constants.
// false: the case is none with these.
static bool case_graph(const ref_case *c, unsigned mask, hth_graph **out, batch *b)
{
    hth_graph *g;
    int in[REF_CASE_TENSORS], to[REF_CASE_TENSORS], v, node;
    int64_t samples = 0;
    for (int i = 0; i < c->node.n_inputs; i++) {
        const hth_shape *s = &c->in[i].shape;
        if ((mask >> i & 1) == 0) {
            continue;
        }
        if (c->node.inputs[i] < 0 || s->rank < 1 || s->dim[0] < 1 ||
            (samples != 0 && s->dim[0] != samples)) {
            return false;
        }
        samples = s->dim[0];
    }
    if (samples == 0 || samples > MAX_SAMPLES) {
        return false;
    }
    samples = samples < 3 ? 3 : samples;
    *b = (batch){.n = 0};
    assert_int_equal(hth_graph_new(&g), HTH_OK);
    (void)words_symbol(g, "N");
    for (int i = 0; i < c->node.n_inputs; i++) {
        hth_const *k;
        hth_shape s = c->in[i].shape;
        in[i] = -1;
        if (c->node.inputs[i] >= 0 && (mask >> i & 1) != 0) {
            s.dim[0] = HTH_DIM_SYMBOL(0);
            assert_int_equal(hth_graph_add_value(g, NULL, c->in[i].dtype, &s, &in[i]), HTH_OK);
            assert_int_equal(hth_graph_add_input(g, in[i]), HTH_OK);
            b->t[b->n++] = widen(&c->in[i], samples);
        } else if (c->node.inputs[i] >= 0) {
            assert_int_equal(hth_const_new(c->in[i].dtype, &s, c->in[i].data, &k), HTH_OK);
            assert_int_equal(hth_graph_add_const(g, NULL, k, &in[i]), HTH_OK);
        }
    }
    for (int i = 0; i < c->node.n_outputs; i++) {
        to[i] = -1;
        if (c->node.outputs[i] >= 0) {
            assert_int_equal(hth_graph_add_value(g, NULL, HTH_DT_NONE, &HTH_SHAPE_UNKNOWN, &v),
                             HTH_OK);
            assert_int_equal(hth_graph_add_output(g, v), HTH_OK);
            to[i] = v;
        }
    }
    assert_int_equal(hth_graph_add_node(g, c->node.op, c->name, in, c->node.n_inputs, to,
                                        c->node.n_outputs, &node),
                     HTH_OK);
    assert_int_equal(hth_node_copy_attrs(&g->nodes[node], &c->node), HTH_OK);
    *out = g;
    return true;
}

static void test_node_cases(void **state)
{
    ref_cases f;
    ref_case *c = calloc(1, sizeof *c);
    tally t = {.graphs = 0};
    int ops = 0;
    assert_non_null(c);
    assert_true(ref_cases_open(&f, "tests/data/ref_cases.bin"));
    while (ref_cases_next(&f, c)) {
        int n = c->node.n_inputs < 6 ? c->node.n_inputs : 6;
        for (unsigned mask = 1; mask < 1U << n && c->node.n_outputs <= MAX_OUTPUTS; mask++) {
            hth_graph *g;
            batch b;
            if (case_graph(c, mask, &g, &b)) {
                check(&t, g, &b, c->name, true);
                batch_free(&b);
                hth_graph_free(g);
            }
        }
        ref_case_clear(c);
    }
    ref_case_clear(c);
    assert_false(f.bad);
    ref_cases_close(&f);
    free(c);
    for (int op = 0; op < HTH_N_OPS; op++) {
        ops += t.op[op];
    }
    printf("# %d one-node models, %d proven, %d run, of %d operators; %d not proven, of which %d "
           "differ\n",
           t.graphs, t.proven, t.run, ops, t.dependent, t.differ);
    assert_int_equal(t.wrong, 0);
    assert_true(t.run > 600 && ops > 120); // it does look
    assert_true(t.differ > 900);           // .. and sees
}

// ---- graphs that come close
//
// In each, a fact that is nearly true would be enough for the proof.

// All positions of a tensor hold the same: its samples lie as those of what it meets, not as its
// own shape says. "f" is [2 * N, ..] with the samples apart: sample 0, 1, .., 0, 1, ..
#define APART_X   "x:N,2,4; t=Transpose(x) perm=1,0,2; f=Reshape(t #-1,4); "
#define EQUAL_4   "s=Shape(f); c=ConstantOfShape(s); "
#define ALIKE_4   "s=Shape(f); c=Expand(#v1,2,3,4 s); "
#define PAIRS_8   "y=Reshape(g #-1,8); -> y"
#define LENGTHS_2 "x:N,2,4; a=ArgMax(x) axis=2 keepdims=0; t=Transpose(a); l=Reshape(t #-1); "
// u is a vector with a 0, which nothing but the run knows.
#define OPEN_LENGTH 65536 // to the power of four it is 0
#define HIDDEN_0    "a=Sin(#v0); b=Cast(a) to=7; u=Identity(b); "
// m = 2 * u is 4, as u is 2 - 2^63. z has m elements; its half is not u.
#define HIDDEN_4 "v=BitwiseOr(#-9223372036854775806 #0); u=Identity(v); m=Mul(u #2); "
#define HALF_Z   "w=Reshape(z #2,-1); s=Shape(w); d=Gather(s #1); g=Equal(d u); " THEN_4

static const char *const close_calls[] = {
    APART_X EQUAL_4 "i=Cast(c) to=7; g=GatherElements(f i) axis=1; " PAIRS_8,
    APART_X EQUAL_4 "i=Cast(c) to=7; g=ScatterElements(c i f) axis=1; " PAIRS_8,
    APART_X "s=Shape(f) end=1; d=Concat(s #1) axis=0; z=ConstantOfShape(d); i=Cast(z) to=7; "
            "g=GatherND(f i) batch_dims=1; y=Reshape(g #-1,2); -> y",
    APART_X ALIKE_4 "g=Einsum(f c) equation='ij,ij->ij'; " PAIRS_8,
    APART_X ALIKE_4 "g=Einsum(c f) equation='ij,ij->ij'; " PAIRS_8,
    "x:N,2; t=Transpose(x); f=Reshape(t #-1); u=Unsqueeze(f #0); s=Shape(u); "
    "c=ConstantOfShape(s); z=Unsqueeze(#0 #0); g=ScatterND(c z u); y=Reshape(g #-1,2); -> y",
    LENGTHS_2 "k=Add(l #s1); s=Shape(l); d=Concat(s #4) axis=0; e=Expand(#v1,2,3,4 d); "
              "g=ReverseSequence(e k) batch_axis=0 time_axis=1; " PAIRS_8,
    "x:N,2,2; t=Transpose(x) perm=1,0,2; f=Reshape(t #1,-1,2); s=Shape(f); c=ConstantOfShape(s); "
    "_ h=RNN(c #f1,2,2 #f1,2,2 _ _ f) hidden_size=2; y=Reshape(h #-1,4); -> y",
    "x:N,2,3,4; t=Transpose(x) perm=1,0,2,3; f=Reshape(t #-1,3,4); s=Shape(f); "
    "c=ConstantOfShape(s); g=Attention(c f f) q_num_heads=1 kv_num_heads=1; "
    "y=Reshape(g #-1,24); -> y",
    "x:N,2,1,3,3; t=Transpose(x) perm=1,0,2,3,4; f=Reshape(t #-1,1,3,3); s=Shape(f); "
    "c=ConstantOfShape(s); v=Expand(#f3,3 s); g=Attention(c c v f); y=Reshape(g #-1,18); -> y",
    "x:N,2,2,2,2; t=Transpose(x) perm=1,0,2,3,4; f=Reshape(t #-1,2,2,2); s=Shape(f) end=1; "
    "d=Concat(s #1,3,3) axis=0; i=Expand(#f1,1,3,3 d); g=GridSample(i f); y=Reshape(g #-1,8); -> y",
    APART_X EQUAL_4 "h=Reshape(x #-1,4); k=Concat(c f h) axis=1; r=Reshape(k #2,-1,12); "
                    "y=Transpose(r) perm=1,0,2; -> y",
    // numbers of samples in a type that does not have them
    "x:N,4; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); b=Cast(r) to=9; j=Cast(b) to=7; "
    "y=Gather(x j); -> y",
    "x:N,4; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); u=Unsqueeze(r #1); "
    "b=Cast(u) to=9; j=Cast(b) to=7; y=GatherND(x j); -> y",
    // what is read, and is no shape
    "x:N,8; s=Shape(x); n=Slice(s #0 #1); f=Cast(n) to=1; h=Div(f #v16); "
    "r=Concat(#v0 h #v1,1) axis=0; "
    "y=Resize(x r _ s) coordinate_transformation_mode='tf_crop_and_resize' mode='linear'; -> y",
    // int32, which wraps around
    "x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#1073741824) to=6; m=Mul(i k); d=Div(m k); "
    "n=Cast(d) to=7; c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); q=Reshape(t #4,-1); "
    "y=Transpose(q); -> y",
    "x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#1073741824) to=6; m=Mul(i k); j=Cast(m) "
    "to=7; "
    "n=Div(j #1073741824); c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); "
    "q=Reshape(t #4,-1); y=Transpose(q); -> y",
    "x:N,4; s=Shape(x) end=1; i=Cast(s) to=6; k=Cast(#536870912) to=6; m=Mul(i k); "
    "l=Cast(#-1) to=6; g=Greater(m l); h=Cast(g) to=7; o=Mul(h #3); e=Add(o #1); " BY_E,
    "x:N,4; s=Shape(x) end=1; m=Mul(s #2305843009213693952); g=Greater(m #-1); h=Cast(g) to=7; "
    "o=Mul(h #3); e=Add(o #1); " BY_E,
    "x:N,4; s=Shape(x) end=1; m=Mul(s #4611686018427387904); n=Div(m #4611686018427387904); "
    "c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); q=Reshape(t #4,-1); "
    "y=Transpose(q); -> y",
    "x:N,4; s=Shape(x) end=1; m=Mul(s #1073741824); i=Cast(m) to=6; k=Cast(#1073741824) to=6; "
    "d=Div(i k); n=Cast(d) to=7; c=Concat(n #-1) axis=0; r=Reshape(x c); t=Transpose(r); "
    "q=Reshape(t #4,-1); y=Transpose(q); -> y",
    "x:N,4; k=Cast(#4294967294) to=6; e=Cast(k) to=7; y=Slice(x #0 e #0); -> y",
    "x:N,4; k=Cast(#2147483647,2147483647) to=6; m=ReduceSum(k #0) keepdims=1; e=Cast(m) to=7; "
    "y=Slice(x #0 e #0); -> y",
    // two results that differ in their attributes, their type, or the sign of a zero
    "x:N,4; a=Mod(#-7 #3); b=Mod(#-7 #3) fmod=1; d=Sub(a b); e=Sub(#4 d); " BY_E,
    "x:N,4; a=Cast(#v1) to=11; b=Cast(#v49) to=11; f=Div(a b); g=Mul(f b); h=Cast(g) to=7; "
    "i=Div(#v1 #v49); j=Mul(i #v49); k=Cast(j) to=7; d=Sub(k h); m=Mul(d #3); e=Sub(#4 m); " BY_E,
    "x:N,4; z=Mul(#v0 #v-1); a=Div(#v1 z); b=Div(#v1 #v0); g=Greater(a #v0); h=Greater(b #v0); "
    "i=Cast(g) to=7; j=Cast(h) to=7; d=Sub(j i); m=Mul(d #3); e=Sub(#4 m); " BY_E,
    "x:N,4; z=Neg(#v0); a=Div(#v1 z); b=Div(#v1 #v0); g=Greater(a #v0); h=Greater(b #v0); "
    "i=Cast(g) to=7; j=Cast(h) to=7; d=Sub(j i); m=Mul(d #3); e=Sub(#4 m); " BY_E,
    // Reshape by 0 copies a dimension, by -1 it is what is left: N becomes 1, what is e is 4
    "x:N,4; " HIDDEN_0 "s=Shape(x) end=1; p=Mul(s u); m=Mul(p #4); t=Transpose(x); "
    "c=Concat(m #-1) axis=0; f=Reshape(t c); r=ReduceSum(f #1) keepdims=1; d=Unsqueeze(r #2); "
    "k=Concat(#4,-1 u) axis=0; h=Reshape(d k); w=Transpose(h) perm=1,0,2; "
    "v=ReduceSum(w #2) keepdims=0; y=Add(x v); -> y",
    "x:N,4; " HIDDEN_0 "n=Sub(u #1); s=Shape(x) end=1; k=Concat(s n) axis=0; f=Reshape(x k); "
    "l=Shape(f); d=Gather(l #1); g=Equal(d n); " THEN_4,
    // the least integer has no absolute value, and sums become negative
    "x:N,4; a=Abs(#-9223372036854775808); g=Less(a #-1); " ELSE_4,
    "x:N,4; u=BitwiseOr(#4611686018427387904 #0); a=Abs(u); v=BitwiseOr(#4611686018427387905 #0); "
    "b=Abs(v); s=Add(a b); g=Less(s #-1); " ELSE_4,
    "x:N,4; a=Add(#4611686018427387904 #4611686018427387904); b=Relu(a); g=Equal(b a); " THEN_4,
    "x:N,4; u=BitwiseOr(#9223372036854775807 #0); a=Relu(u); f=Cast(a) to=1; b=Cast(f) to=7; "
    "g=Less(b #-1); " ELSE_4,
    // a filter of a length that is not known
    "x:N,4; " HIDDEN_0 "k=Add(u #2); l=Concat(#1,1 k) axis=0; w=ConstantOfShape(l); "
    "i=Reshape(#f3 #1,1,3); z=ConvTranspose(i w); s=Shape(z); d=Gather(s #2); g=Equal(d "
    "#4098); " THEN_4,
    // 0 / 0
    "x:N,4; " HIDDEN_0 "h=Div(u u); o=Mul(h #3); e=Add(o #1); " BY_E,
    "x:N,4; a=Cast(#0,0) to=9; k=Compress(#5,6 a); u=Shape(k); s=Shape(x) end=1; m=Mul(s u); "
    "d=Div(m u); g=Equal(d s); " THEN_4,
    // half of 2^40 is 0 in int32
    "x:N,4; u=BitwiseOr(#1099511627776 #0); l=Concat(u #0) axis=0; z=ConstantOfShape(l); "
    "v w=Split(z) axis=0 num_outputs=2; s=Shape(v); d=Gather(s #0); i=Cast(d) to=6; "
    "j=Cast(i) to=7; g=Equal(d j); " THEN_4,
    // 0 and 1 broadcast to 0
    "x:N,4; " HIDDEN_0 "k=Add(u #1); l=Identity(k); v=ConstantOfShape(u); w=ConstantOfShape(l); "
    "z=Add(v w); s=Shape(z); m=Max(u l); g=Equal(s m); " THEN_4,
    "x:N,4; " HIDDEN_0 "k=Add(u #1); l=Identity(k); m=Min(u l); v=ConstantOfShape(m); "
    "w=ConstantOfShape(l); z=Add(v w); s=Shape(z); g=Equal(s l); " THEN_4,
    // Reshape has no elements left for -1 where there are none
    "x:N,4; " HIDDEN_0 "z=ConstantOfShape(u); l=Concat(u #-1) axis=0; w=Reshape(z l); s=Shape(w); "
    "d=Gather(s #1); g=Equal(d #1); " THEN_4,
    "x:N,4; " HIDDEN_0 "s=Shape(x) end=1; k=Concat(s u) axis=0; z=ConstantOfShape(k); "
    "l=Concat(#-1 u) axis=0; w=Reshape(z l); d=Shape(w) end=1; g=Equal(d s); " THEN_4,
    // what is never computed holds nothing
    "x:N,4; " HIDDEN_0 "v=Sub(u #2); k=Identity(v); w=Add(u #6); l=Identity(w); "
    "z=ConstantOfShape(l); i=Concat(k #-1) axis=0; _=Reshape(z i); d=Div(l k); g=Less(d "
    "#-1); " ELSE_4,
    "x:N,4; " HIDDEN_0 "v=Sub(u #2); k=Identity(v); w=Sub(u #6); l=Identity(w); "
    "z=ConstantOfShape(l); _=Expand(z k); m=Max(k l); g=Less(m #-1); " ELSE_4,
    // a product that wrapped around is no length
    "x:N,4; " HIDDEN_4 "z=ConstantOfShape(m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Tile(#f1 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Expand(#f1 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Reshape(#f4 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z l=TopK(#f4 m); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Split(#f4 m) axis=0; " HALF_Z,
    "x:N,4; " HIDDEN_4 "k=Squeeze(m); z=OneHot(#s1 k #v0,1); " HALF_Z,
    "x:N,4; " HIDDEN_4 "z=Resize(#f4 _ _ m) mode='nearest'; " HALF_Z,
    // a multiple of a tensor's elements that wraps around to 0, by which Reshape copies a dimension
    "x:N,4; z:N,T; s=Shape(z) start=1; a=Mul(s s); b=Mul(a s); l=Concat(s s s) axis=0; "
    "w=ConstantOfShape(l); m=Mul(b #65536); i=Concat(m s s) axis=0; f=Reshape(w i); "
    "d=Shape(f) end=1; g=Equal(d m); " THEN_4,
};

static void test_close_calls(void **state)
{
    tally t = {.graphs = 0};
    int same = 0;
    for (size_t i = 0; i < sizeof close_calls / sizeof close_calls[0]; i++) {
        hth_graph *g = words_graph(close_calls[i]);
        batch b = sketch_batch(g, 5, OPEN_LENGTH);
        int differ = t.differ + t.wrong;
        check(&t, g, &b, close_calls[i], true);
        if (t.differ + t.wrong == differ) {
            printf("# joined is what alone is: %s\n", close_calls[i]);
            same++;
        }
        batch_free(&b);
        hth_graph_free(g);
    }
    assert_int_equal(same, 0); // the test looks at what it is to look at
    assert_int_equal(t.wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_node_cases),
        cmocka_unit_test(test_close_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
