// SPDX-License-Identifier: Apache-2.0
// FusedAttention against the reference: dense operands, heads cut out of one packed projection,
// transposed outputs, masks of every broadcast, rows that see nothing, long sequences.
#include "kernels/cpu/fixture.h"

#include "graph/attention.h"

typedef struct attention_case {
    int64_t b, h, t, s, d, e;
    bool packed; // Q, K, V are slices of one [t, b, 3 h d] tensor; out is [t, b, h, e]
    int mask;    // 0: none, 1: [s], 2: [t, s], 3: [b, 1, t, s]
    bool hides;  // the mask holds -inf; its first row nothing else
} attention_case;

static int attention_mask(fixture *f, const attention_case *c, hth_attention *attention)
{
    hth_shape s = c->mask == 1 ? SHAPE(c->s) : SHAPE(c->t, c->s);
    if (c->mask == 3) {
        s = SHAPE(c->b, 1, c->t, c->s);
    }
    attention->has_mask = true;
    attention->mask =
        (hth_attention_view){0, {c->mask == 3 ? c->t * c->s : 0, 0, c->mask == 1 ? 0 : c->s, 1}};
    float *p = fixture_fill(f, &s);
    for (int64_t i = 0; i < hth_shape_elements(&s) && c->hides; i++) {
        p[i] = i < c->s || i % 3 == 0 ? -INFINITY : p[i];
    }
    int v = fixture_const_of(f, HTH_DT_F32, s, p);
    hth_free(p);
    return v;
}

static void attention_check(const attention_case *c)
{
    fixture f;
    fixture_open(&f, (uint64_t)(c->t * 7 + c->s));
    hth_attention a = {
        .b0 = c->b, .b1 = c->h, .t = c->t, .s = c->s, .d = c->d, .e = c->e, .scale = 0.7F};
    int in[4] = {-1, -1, -1, -1}, out[1];
    if (c->packed) {
        int64_t w = c->h * c->d, row = c->b * 3 * w;
        in[0] = in[1] = in[2] = fixture_value(&f, SHAPE(c->t, c->b, 3 * w));
        a.q = (hth_attention_view){0, {3 * w, c->d, row, 1}};
        a.k = (hth_attention_view){w, {3 * w, c->d, row, 1}};
        a.v = (hth_attention_view){2 * w, {3 * w, c->d, row, 1}};
        a.out = (hth_attention_view){0, {w, c->e, c->b * w, 1}};
        out[0] = fixture_value(&f, SHAPE(c->t, c->b, c->h, c->e));
    } else {
        in[0] = fixture_value(&f, SHAPE(c->b, c->h, c->t, c->d));
        in[1] = fixture_value(&f, SHAPE(c->b, c->h, c->d, c->s)); // transposed already
        in[2] = fixture_value(&f, SHAPE(c->b, c->h, c->s, c->e));
        a.q = (hth_attention_view){0, {c->h * c->t * c->d, c->t * c->d, c->d, 1}};
        a.k = (hth_attention_view){0, {c->h * c->s * c->d, c->s * c->d, 1, c->s}};
        a.v = (hth_attention_view){0, {c->h * c->s * c->e, c->s * c->e, c->e, 1}};
        a.out = (hth_attention_view){0, {c->h * c->t * c->e, c->t * c->e, c->e, 1}};
        out[0] = fixture_value(&f, SHAPE(c->b, c->h, c->t, c->e));
    }
    if (c->mask != 0) {
        in[3] = attention_mask(&f, c, &a);
    }
    hth_node *n = fixture_node(&f, HTH_OP_FUSED_ATTENTION, in, c->mask ? 4 : 3, out, 1);
    assert_int_equal(hth_attention_set(n, &a), HTH_OK);
    fixture_check(&f, NULL, false, 3e-6);
    fixture_close(&f);
}

static void attention_dense(void **state)
{
    const attention_case cases[] = {
        {1, 1, 1, 1, 1, 1, false, 0, false},     {2, 3, 5, 7, 8, 9, false, 0, false},
        {1, 2, 64, 64, 32, 32, false, 2, false}, {2, 3, 17, 33, 16, 40, false, 3, true},
        {1, 1, 40, 50, 64, 64, false, 1, false}, {1, 1, 100, 5000, 16, 16, false, 2, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attention_check(&cases[i]);
    }
}

static void attention_packed(void **state)
{
    const attention_case cases[] = {
        {1, 12, 128, 128, 64, 64, true, 0, false},
        {3, 2, 50, 50, 24, 24, true, 2, true},
        {2, 1, 31, 31, 64, 64, true, 3, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attention_check(&cases[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_dense),
        cmocka_unit_test(attention_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
