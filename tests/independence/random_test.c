// SPDX-License-Identifier: Apache-2.0
// Wherever samples are proven independent, joined equals alone: graphs made at random.
//
// HEARTH_TEST_GRAPHS=100000 makes more of them, HEARTH_TEST_SEED others. A graph that is proven,
// and differs, is printed as a text of graph/test_words.h.
#include "base/test.h"
#include "tests/independence/alone.h"

#define TEXT       8192
#define IDEA       768
#define MAX_VALUES 64

typedef struct known {
    char name[12];
    hth_dtype dtype;
    hth_shape s; // of three samples
} known;

// A graph that grows.
typedef struct sketch {
    char text[TEXT];
    known v[MAX_VALUES];
    int n, named;
    uint64_t state;
} sketch;

static unsigned draw(sketch *k, unsigned n)
{
    uint64_t z = k->state += 0x9E3779B97F4A7C15u; // splitmix64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (unsigned)((z ^ z >> 31) % n);
}

static uint64_t environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static sketch *sketch_open(uint64_t family, uint64_t i)
{
    sketch *k = calloc(1, sizeof *k);
    assert_non_null(k);
    k->state = (environment("HEARTH_TEST_SEED", 0) << 40) + (family << 36) + (i << 16);
    return k;
}

static void sketch_name(sketch *k, const char *name, hth_dtype dt, const hth_shape *s)
{
    if (k->n < MAX_VALUES) {
        known *v = &k->v[k->n++];
        snprintf(v->name, sizeof v->name, "%s", name);
        v->dtype = dt;
        v->s = *s;
    }
}

// ---- ideas
//
// An idea is some statements, with
//   $           the new value's name
//   {a|b|c}     one of them
//   %v %w       two tensors of floats, one of the later ones rather: the same throughout the idea
//   %a %b       an axis of v, of w
//   %l %n %c %h the last dimension of v, the one before, its dimension 1; its last one as two
//   %p          a permutation of v's axes
//   %i          a number: a vector of one integer, another each time
//   %j %k       two numbers, the same throughout the idea
//   %x          a constant that few expect

static const char *const unusual[] = {"0",
                                      "1",
                                      "2",
                                      "-1",
                                      "3",
                                      "4",
                                      "5",
                                      "-2",
                                      "7",
                                      "64",
                                      "-3",
                                      "2147483647",
                                      "2147483648",
                                      "-2147483648",
                                      "4294967296",
                                      "1099511627776",
                                      "4611686018427387904",
                                      "-4611686018427387904",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "-9223372036854775806",
                                      "16777217",
                                      "3000000000"};

static const known *pick(sketch *k, hth_dtype dt)
{
    for (int tries = 0; tries < 64; tries++) {
        bool late = dt == HTH_DT_F32 && draw(k, 2) == 0;
        int back = (int)draw(k, late ? 3 : (unsigned)k->n);
        const known *v = &k->v[back < k->n ? k->n - 1 - back : 0];
        if (v->dtype == dt) {
            return v;
        }
    }
    return &k->v[0];
}

// Longer ones are no size for a constant.
static int64_t dim_of(const known *v, int d, int64_t most)
{
    int64_t dim = d >= 0 && d < v->s.rank ? v->s.dim[d] : 1;
    return dim < most ? dim : most;
}

// An idea that is being written.
typedef struct idea {
    const char *name;
    const known *v, *w; // tensors
    const known *j, *k; // numbers
    char text[IDEA];
    size_t n;
} idea;

static void put(idea *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(idea *to, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    to->n += (size_t)vsnprintf(to->text + to->n, sizeof to->text - to->n, format, list);
    va_end(list);
    assert_true(to->n < sizeof to->text);
}

static void put_permutation(sketch *k, idea *to)
{
    int perm[HTH_MAX_RANK], rank = to->v->s.rank;
    for (int d = 0; d < rank; d++) {
        perm[d] = d;
    }
    for (int d = 0; d < rank; d++) {
        int other = (int)draw(k, (unsigned)rank), kept = perm[d];
        perm[d] = perm[other];
        perm[other] = kept;
    }
    for (int d = 0; d < rank; d++) {
        put(to, d > 0 ? ",%d" : "%d", perm[d]);
    }
}

static void put_number(sketch *k, idea *to, char what)
{
    const known *v = to->v, *w = to->w;
    const hth_shape *s = what == 'b' ? &w->s : &v->s;
    long long last = dim_of(v, v->s.rank - 1, 20);
    switch (what) {
    case 'a':
    case 'b':
        put(to, "%d", s->rank > 0 ? (int)draw(k, (unsigned)s->rank) : 0);
        break;
    case 'l':
        put(to, "%lld", last);
        break;
    case 'n':
        put(to, "%lld", (long long)dim_of(v, v->s.rank - 2, 20));
        break;
    case 'c':
        put(to, "%lld", (long long)dim_of(v, 1, 10));
        break;
    default:
        put(to, "%lld,%d", last % 2 == 0 ? last / 2 : last, last % 2 == 0 ? 2 : 1);
    }
}

static void put_placeholder(sketch *k, idea *to, char what)
{
    switch (what) {
    case 'v':
        put(to, "%s", to->v->name);
        break;
    case 'w':
        put(to, "%s", to->w->name);
        break;
    case 'p':
        put_permutation(k, to);
        break;
    case 'i':
        put(to, "%s", pick(k, HTH_DT_I64)->name);
        break;
    case 'j':
        put(to, "%s", to->j->name);
        break;
    case 'k':
        put(to, "%s", to->k->name);
        break;
    case 'x':
        put(to, "%s", unusual[draw(k, sizeof unusual / sizeof unusual[0])]);
        break;
    default:
        put_number(k, to, what);
    }
}

// The alternative that is drawn of those up to `end`.
static const char *alternative(sketch *k, const char *p, const char *end)
{
    unsigned choices = 1;
    for (const char *c = p; c < end; c++) {
        choices += *c == '|';
    }
    for (unsigned skip = draw(k, choices); skip > 0; skip--) {
        p = strchr(p, '|') + 1;
    }
    return p;
}

static void write_idea(sketch *k, const char *name, const char *p, idea *to)
{
    const char *after = NULL; // where the text continues after an alternative
    *to = (idea){.name = name};
    to->v = pick(k, HTH_DT_F32);
    to->w = pick(k, HTH_DT_F32);
    to->j = pick(k, HTH_DT_I64);
    to->k = pick(k, HTH_DT_I64);
    for (; *p != 0; p++) {
        if (*p == '{') {
            after = strchr(p, '}');
            p = alternative(k, p + 1, after) - 1;
        } else if (after != NULL && (*p == '|' || *p == '}')) {
            p = after;
            after = NULL;
        } else if (*p == '$') {
            put(to, "%s", to->name);
        } else if (*p == '%') {
            put_placeholder(k, to, *++p);
        } else {
            put(to, "%c", *p);
        }
    }
}

// ---- graphs of operators
//
// Each grows by one idea at a time. An idea that the shape inference refuses, for one, two or three
// samples, is dropped; most of the others mix samples.

#define SHAPE "#{-1|0,-1|-1,%l|1,-1|-1,1,%l|-1,%n,%l|%l,-1|0,%h|-1,1|-1,2|-1,3|-1,5}"
#define ROWS  "$_s=Shape(%v) end=1; $_n=Squeeze($_s #0); $_r=Range(#s0 $_n #s1); "

static const char *const moves[] = {
    "$=Transpose(%v) perm=%p",
    "$=Reshape(%v " SHAPE ")",
    "$=Reshape(%v " SHAPE ")",
    "$_s=Shape(%w); $=Reshape(%v $_s)",
    "$=Flatten(%v) axis={0|1|2|3}",
    "$=Unsqueeze(%v #{0|1|2})",
    "$=Squeeze(%v #%a)",
    "$_s=Shape(%w); $=Expand(%v $_s)",
    "$_s=Shape(%w); $_n=Gather($_s #%b); $_c=Concat($_n #-1) axis=0; $=Reshape(%v $_c)",
    "$_t=Tile(#f1 #{1|2|3}); $=Add(%v $_t)",
    "$_s=Shape(%w); $_c=ConstantOfShape($_s); $=Add(%v $_c)",
    "$_t=Transpose(%v) perm=%p; $=Reshape($_t #{0,-1|-1,0|0,0,-1|0,-1,%l|-1,0,%l|-1,%l|-1,%n})",
    "$_t=Transpose(%v) perm=1,0,2; $=Reshape($_t #-1,%l)", // samples that lie apart
    "$_s=Shape(%w); $=ConstantOfShape($_s)",
    "$_s=Shape(%w); $=Expand(#f{1|%l} $_s)",
    "$=Expand(%v #{3,1,1|1,3,1|2,1})",
};

static const char *const lines[] = {
    "$={Softmax|LogSoftmax|Hardmax|LpNormalization}(%v) axis=%a",
    "$={ReduceSum|ReduceMean|ReduceMax|ReduceL2}(%v #%a) keepdims={0|1}",
    "$=CumSum(%v #s%a)",
    "$=Concat(%v %w) axis=%a",
    "$=Slice(%v #{0|1} #{9223372036854775807|2147483647|1|-1} #%a)",
    "$=Gather(%v #{0|0,0|-1|s0}) axis=%a",
    "$ $_i=TopK(%v #1) axis=%a",
    "$=LayerNormalization(%v #f%l) axis={-1|%a}",
    "$_a $_b=Split(%v) axis={0|1|2} num_outputs=2; $=Concat($_b $_a) axis=%a",
    "$_i=ArgMax(%v) axis=1 keepdims=1; $=GatherElements(%v $_i) axis={0|1}",
    "$=Tile(%v #{1,2|2,1|1,1,2|1,2,1})",
    "$=Trilu(%v)",
    "$=BatchNormalization(%v #f%c #f%c #f%c #f%c)",
};

#define OP "{Add|Mul|Sub|Max}"
static const char *const joins[] = {
    "$={Relu|Neg|Sigmoid|Abs}(%v)",
    "$=" OP "(%v %w)",
    "$=" OP "(%v %w)",
    "$=" OP "(%v #f{1|%l|%l})",
    "$=" OP "(#f{1|%n},%l %v)",
    "$=MatMul(%v #f%l,{1|2|3|4})",
    "$=MatMul(%v %w)",
    "$=Gemm(%v %w) transA={0|1} transB={0|1}",
    "$=Einsum(%v %w) equation='{ij,jk->ik|ij,kj->ik|ij,ij->i|ij,ij->ij|bij,bjk->bik|bij,bkj->bik|"
    "bi,bj->bij|ij,ik->jk|...i,...i->...}'",
    "$_g=Greater(%v #v0); $=Where($_g %v %w)",
    "$_s=Shape(%w); $_n=Gather($_s #s%b); $_f=Cast($_n) to=1; $=" OP "(%v $_f)",
    ROWS "$=Gather(%w $_r) axis=%b",
    ROWS "$_u=Unsqueeze($_r #1); $_i=ArgMax(%v) axis=1 keepdims=1; $_c=Concat($_u $_i) axis=1; "
         "$=GatherND(%w $_c)",
};

static const char *const others[] = {
    "$=Pad(%v #{0,0,0,1|0,1,0,0|0,-1,0,0|1,0,0,0|0,0,0,0,1,0}) mode='{constant|edge|reflect|wrap}'",
    "$=Slice(%v #{-1|3|-2} #{-9223372036854775808|0|-4} #%a #{-1|-2})",
    "$=Trilu(%v #s{-1|1}) upper={0|1}",
    "$_i=ArgMax(%v) axis=%a keepdims={0|1}; $=OneHot($_i #s{3|4} #v0,1) axis={-1|0|1}",
    "$_i=ArgMax(%v) axis=%a keepdims=1; $=GatherElements(%w $_i) axis=%b",
    "$_i=ArgMin(%v) axis=%a keepdims={0|1}; $=Gather(%w $_i) axis=%b",
    "$_i=ArgMax(%v) axis=%a keepdims=1; $=GatherND(%w $_i) batch_dims={0|1|2}",
    "$_i=ArgMax(%v) axis=%a keepdims=1; $=ScatterElements(%w $_i %v) axis=%b "
    "reduction='{none|add|max}'",
    "$_i=ArgMax(%v) axis=%a keepdims=1; $=ScatterND(%w $_i {%v|%w}) reduction='{none|add}'",
    "$ $_i=TopK(%v #{1|2}) axis=%a largest={0|1}",
    "$_y $_i=TopK(%v #{1|2}) axis=%a; $=GatherElements(%w $_i) axis={%a|%b}",
    "$=CumSum(%v #s%a) exclusive={0|1} reverse={0|1}",
    "$=ReduceSum(%v #{0,1|-1|1,2|-1,-2|0,-1}) keepdims={0|1}",
    "$=ReduceMean(%v) noop_with_empty_axes={0|1} keepdims=1",
    "$_l=ArgMax(%v) axis={1|2} keepdims=0; $=ReverseSequence(%w $_l) batch_axis={0|1} "
    "time_axis={0|1}",
    "$=Einsum(%v %w) equation='{bij,bkj->bki|b...,b...->b...|abc,abd->adc|ab,cd->abcd|"
    "...ij,...jk->...ik|ij,jk|...j,j->...|i,i->i|ab,ba->ab|abc,ac->ab|aij,ij->a}'",
    "$=Einsum(%v) equation='{ij->ji|ii->i|bii->bi|ijk->kij|ij->i|ijk->j|...i->i...|ijk->ikj|ijk}'",
    "$=Attention({%v %v %v|%v %w %w|%v %v %w|%w %v %v}) q_num_heads=1 kv_num_heads=1 "
    "is_causal={0|1}",
    "$_t=Transpose(%v) perm=0,2,1; $_m=MatMul(%v $_t); $_u={Unsqueeze($_m #1)|Trilu($_m)}; "
    "$=Attention(%v %v %v $_u) q_num_heads=1 kv_num_heads=1",
    "$_s=Shape(%v) start={0|1} end=2; $_e=Shape(%v) start=1 end=2; $_c=Concat($_s $_e) axis=0; "
    "$_z=ConstantOfShape($_c); $_u=Trilu($_z); $=Attention(%v %v {%v|%w} $_u) q_num_heads=1 "
    "kv_num_heads=1",
    "$=InstanceNormalization(%v #f%c #f%c)",
    "$=GroupNormalization(%v #f%c #f%c) num_groups={1|%c}",
    "$=MeanVarianceNormalization(%v) axes={0,2|1,2|2|-1|1}",
    "$ $_m $_x=BatchNormalization(%v #f%c #f%c #f%c #f%c) training_mode=1",
    "$={LayerNormalization|RMSNormalization}(%v {%w|#f%l|#f%n,%l}) axis={-1|-2|%a}",
    "$_y $ $_x=LayerNormalization(%v #f%l) axis={-1|%a}",
    "$=LRN(%v) size=3",
    "$={GlobalAveragePool|GlobalMaxPool|GlobalLpPool}(%v)",
    "$={MaxPool|AveragePool|LpPool}(%v) kernel_shape={1|2|2,2|1,2}",
    "$={Conv|ConvTranspose}(%v #f{1|2|%c},%c,{1|2|1,1|2,1|1,2})",
    "$=Conv(%v %w)",
    "$={DepthToSpace|SpaceToDepth}(%v) blocksize=2",
    "$=Resize(%v _ #v{1,2|1,1,2|2,1|1,2,2|1,1,1,2}) mode='{nearest|linear|cubic}'",
    "$_s=Shape(%w); $=Resize(%v _ _ $_s) mode='{nearest|linear}'",
    "$ $_h=RNN(%v #f1,3,%l #f1,3,3) hidden_size=3 layout={0|1} direction='{forward|reverse}'",
    "$_h $=GRU(%v #f1,9,%l #f1,9,3) hidden_size=3 layout={0|1}",
    "$_h $=LSTM(%v #f1,12,%l #f1,12,3 _ _ {_|%w}) hidden_size=3 layout={0|1}",
    "$=GridSample(%v {%v|%w})",
    "$_i=Cast(%v) to=7; $_m=Mod($_i #{2|3}); $=Gather({%w|#f3,2} $_m) axis=0",
    "$_c=Cast(#{1,0|1,1|0,1,1}) to=9; $=Compress(%v $_c) axis=%a",
    "$={PRelu|Pow|Mean|Sum|Div|Min}(%v {%w|%v})",
    "$_s=Size(%v); $_u=Unsqueeze($_s #0); $_f=Cast($_u) to=1; $=Add(%v $_f)",
    "$=EyeLike(%v)",
    "$={Softmax|Hardmax}(%v) axis=%a flatten=1",
    "$=Det(%v)",
    ROWS "$_m=Mul($_r #s{1|2|3|%c}); $_i=ArgMax(%v) axis=1 keepdims=0; $_k=Add($_m $_i); "
         "$_f=Reshape(%w #{-1|-1,%l}); $=Gather($_f $_k)",
    ROWS "$_u=Unsqueeze($_r #1); $_c=Concat($_u $_u) axis=1; $=GatherND(%w {$_u|$_c})",
    ROWS "$_u=Unsqueeze($_r #1); $=ScatterND(%w $_u %v)",
    ROWS "$_g=Less($_r #s{2|1}); $_x=Unsqueeze($_g #1); $=Where($_x %v %w)",
    "$_n=IsNaN(%v); $_z=Not($_n); $_f=Cast($_z) to=1; $=Mul(%w $_f)",
};

typedef struct table {
    const char *const *idea;
    unsigned n;
} table;
#define TABLE(list)                                                                                \
    {                                                                                              \
        list, sizeof(list) / sizeof((list)[0])                                                     \
    }

typedef struct family {
    const char *name;
    table inputs, ideas[4];
    unsigned tables, most; // at most so many ideas make a graph
    int graphs;
    int run, differ; // in a thousand of all there must be so many
} family;

// sketch_learn notes the values of a graph whose shapes are known.
static void sketch_learn(sketch *k, const hth_graph *graph, const batch *b, const hth_graph *known)
{
    k->n = 0;
    for (int i = 0; i < graph->n_inputs; i++) {
        sketch_name(k, graph->values[graph->inputs[i]].name, HTH_DT_F32, &b->t[i].shape);
    }
    for (int i = 0; i < graph->n_outputs; i++) {
        const hth_value *v = &known->values[known->outputs[i]];
        sketch_name(k, graph->values[graph->outputs[i]].name, v->dtype, &v->shape);
    }
}

// sketch_take has `text` be the sketch, if its shapes can be inferred and stay small.
static bool sketch_take(sketch *k, const char *text)
{
    hth_graph *g = words_graph(text);
    bool fits = true;
    for (int v = 0; v < g->n_values; v++) {
        if (g->values[v].producer >= 0) {
            assert_int_equal(hth_graph_add_output(g, v), HTH_OK);
        }
    }
    for (int64_t samples = 1; samples <= 3 && fits; samples++) {
        batch b = sketch_batch(g, samples, 2);
        hth_stage stage;
        fits = hth_specialize(g, b.t, hth_ref_eval, NULL, &stage) == HTH_OK;
        fits = fits && stage.rest == NULL && stage.value_inputs == 0;
        for (int i = 0; fits && i < stage.graph->n_outputs; i++) {
            fits = hth_shape_elements(&stage.graph->values[stage.graph->outputs[i]].shape) < 4096;
        }
        if (fits && samples == 3) {
            sketch_learn(k, g, &b, stage.graph);
            snprintf(k->text, sizeof k->text, "%s", text);
        }
        hth_stage_fini(&stage);
        batch_free(&b);
    }
    hth_graph_free(g);
    return fits;
}

static void sketch_grow(sketch *k, const family *f)
{
    char text[TEXT + IDEA + 4], name[8];
    for (int tries = 0; tries < 12; tries++) {
        snprintf(name, sizeof name, "t%d", k->named++ % 1000);
        const table *from = &f->ideas[draw(k, f->tables)];
        idea next;
        write_idea(k, name, from->idea[draw(k, from->n)], &next);
        if (strlen(k->text) + next.n + 3 < TEXT) {
            snprintf(text, sizeof text, "%s; %s", k->text, next.text);
            if (sketch_take(k, text)) {
                return;
            }
        }
    }
}

static void sketch_check(sketch *k, tally *t)
{
    char text[TEXT + 64];
    // The last value, and often one before: an output that fits does not excuse one that does not.
    const char *last = k->v[k->n - 1].name;
    const char *other = draw(k, 3) == 0 ? pick(k, HTH_DT_F32)->name : "";
    snprintf(text, sizeof text, "%s; -> %s %s", k->text, last, other);
    hth_graph *g = words_graph(text);
    batch b = sketch_batch(g, 5, 2);
    check(t, g, &b, text, k->state % 4 == 0);
    batch_free(&b);
    hth_graph_free(g);
}

static void tally_check(const tally *t, const char *name, int run, int differ)
{
    int ops = 0;
    for (int op = 0; op < HTH_N_OPS; op++) {
        ops += t->op[op];
    }
    printf("# %s, seed %d: %d graphs, %d proven, %d run, of %d operators; %d not proven, of which "
           "%d of a quarter differ\n",
           name, (int)environment("HEARTH_TEST_SEED", 0), t->graphs, t->proven, t->run, ops,
           t->dependent, t->differ);
    assert_int_equal(t->wrong, 0);
    assert_true(t->run * 1000LL >= (int64_t)run * t->graphs);       // it does look
    assert_true(t->differ * 1000LL >= (int64_t)differ * t->graphs); // .. and sees
}

static void family_check(const family *f, uint64_t number)
{
    tally t = {.graphs = 0};
    int graphs = (int)environment("HEARTH_TEST_GRAPHS", (uint64_t)f->graphs / TEST_STRIDE);
    while (t.graphs < graphs) {
        sketch *k = sketch_open(number, (uint64_t)t.graphs);
        assert_true(sketch_take(k, f->inputs.idea[draw(k, f->inputs.n)]));
        unsigned ideas = 1 + draw(k, f->most);
        for (unsigned n = 0; n < ideas; n++) {
            sketch_grow(k, f);
            if (n + 1 == ideas || draw(k, 3) == 0) {
                sketch_check(k, &t);
            }
        }
        free(k);
    }
    tally_check(&t, f->name, f->run, f->differ);
}

static void test_operators(void **state)
{
    static const char *const inputs[] = {
        "x:N,4",     "x:N,2,3; z:N,4", "x:N; z:N,4",    "x:N,1,4; z:N,4,2",
        "x:N,3,3",   "x:N,6; z:N,6",   "x:N,2,4",       "x:N,2,3,2; z:N,3",
        "x:N,4,2,2", "x:N,2,2; z:N,2", "x:N,2; z:N,2,2"};
    static const family f = {"operators",
                             TABLE(inputs),
                             {TABLE(moves), TABLE(lines), TABLE(joins), TABLE(others)},
                             4,
                             9,
                             6000,
                             200,
                             80};
    family_check(&f, 1);
}

// ---- addresses
//
// Samples' numbers, and what is added to them or made of them, address samples.

static const char *const addresses[] = {
    "$={Add|Add|Mul|Mul|Sub|Max}(%i {%i|%i|#s0|#s1|#s2|#s4|#0|#1|#4|#0,1|#1,0,2|#s3})",
    "$=Mod(%i {#s2|#s4|#3|#1})",
    "$=Unsqueeze(%i {#0|#1|#-1})",
    "$=Reshape(%i {#-1|#-1,1|#-1,2|#1,-1|#2,-1})",
    "$=Transpose(%i)",
    "$=Concat(%i %i) axis={0|1|-1}",
    "$=Tile(%i {#2|#1,2|#2,1})",
    "$=Expand(%i {#2,1|#3|#1,3})",
    "$=Slice(%i {#0|#1} {#1|#2|#9223372036854775807} {#0|#1|#-1})",
    "$_c=Cast(%i) to={6|7|1|3|9}; $=Cast($_c) to=7",
    "$=Identity(%i)",
    "$=ArgMax(%v) axis=%a keepdims={0|1}",
    "$_y $=TopK(%v #{1|2}) axis=%a",
    "$_s=Shape(%v) end=1; $_n=Squeeze($_s #0); $=Range(#s0 $_n #s1)",
    "$_s=Shape(%v) end=1; $_n=Squeeze($_s #0); $_r=Range(#s0 $_n #s1); $_m=Mul($_r #s%n); "
    "$_a=ArgMax(%v) axis=1 keepdims=0; $=Add($_m $_a)",
    "$=CumSum(%i #s{0|1})",
    "$=ReduceSum(%i #{0|1}) keepdims={0|1}",
    "$=Gather(%i %i) axis={0|1}",
    "$=Where(g %i %i)",
};

static const char *const addressed[] = {
    "$=Gather(%v %i) axis=%a",
    "$=Gather(%v %i)",
    "$=GatherND(%v %i) batch_dims={0|0|1}",
    "$=ScatterND(%v %i %w) reduction='{none|add|max}'",
    "$=GatherElements(%v %i) axis=%a",
    "$=ScatterElements(%v %i %w) axis=%a",
    "$=OneHot(%i #s4 #v0,1) axis={-1|0|1}",
    "$_f=Reshape(%v {#-1|#-1,%l|#-1,2|#-1,%h}); $=Gather($_f %i)",
    "$_f=Reshape(%v {#-1|#-1,%l|#-1,2}); $=GatherND($_f %i)",
    "$_c=Cast(%i) to=1; $=Add(%v $_c)",
    "$=Gather(#f8,{2|4} %i)",
    "$=Reshape(%v {#-1,%l|#-1,%n,%l|#-1,4|#-1})",
    "$=Add(%v %w)",
    "$=Transpose(%v) perm=%p",
};

static void test_addresses(void **state)
{
    static const char *const inputs[] = {
        "x:N,4; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); g=Greater(r #s-1)",
        "x:N,2,4; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); g=Less(r #s2)",
        "x:N,4; z:N; s=Shape(x) end=1; n=Squeeze(s #0); r=Range(#s0 n #s1); g=Greater(z #v0)",
        "x:N,4; z:N,2; s=Shape(x) end=1; n=Squeeze(s #0); k=Range(#s0 n #s1); r=Unsqueeze(k #1); "
        "g=Greater(z #v0)",
    };
    static const family f = {
        "addresses", TABLE(inputs), {TABLE(addresses), TABLE(addressed)}, 2, 7, 6000, 50, 50};
    family_check(&f, 4);
}

// ---- shapes that are computed
//
// Numbers that the proof does not know (BitwiseOr is none of its arithmetic) decide how tensors are
// regrouped, repeated and cut.

#define HIDDEN "$_b=BitwiseOr(#{0|1|-1|2|4|3} #0); $=Identity($_b)"
#define LENGTH "{#-1|#4|#1|#0|#2|s|s|%i|%i|%i|%i}"

static const char *const numbers[] = {
    HIDDEN,
    "$={Mul|Mul|Add|Sub|Max|Min|Div}(%i %i)",
    "$_h=Shape(%v); $=Gather($_h #{0|1})",
    "$_l=Concat(" LENGTH ") axis=0; $_z=ConstantOfShape($_l); $=Shape($_z)",
};

static const char *const regroups[] = {
    "$_l=Concat(" LENGTH " " LENGTH ") axis=0; $=Reshape(%v $_l) allowzero={0|0|0|1}",
    "$_l=Concat(" LENGTH " " LENGTH ") axis=0; $=Reshape(%v $_l)",
    "$_l=Concat(" LENGTH " " LENGTH " " LENGTH ") axis=0; $=Reshape(%v $_l)",
    "$_l=Concat(" LENGTH ") axis=0; $=Reshape(%v $_l)",
    "$_l=Concat(" LENGTH " " LENGTH ") axis=0; $=Expand(%v $_l)",
    "$_l=Concat(" LENGTH " " LENGTH ") axis=0; $=Tile(%v $_l)",
    "$_l=Concat(" LENGTH " " LENGTH ") axis=0; $_z=ConstantOfShape($_l); $=Add(%v $_z)",
    "$=Slice(%v {#0|%i} " LENGTH " #{0|1})",
    "$_l=Concat({#0|%i} {#0|%i} {#0|%i} {#0|%i}) axis=0; $=Pad(%v $_l)",
    "$=Transpose(%v) perm=%p",
    "$=ReduceSum(%v #{0|1|2}) keepdims={0|1}",
    "$=Add(%v %w)",
    "$=Unsqueeze(%v #{0|1|2})",
    "$=Reshape(%v #-1,4)",
    "$=Add(x %v)",
    "$_t=Transpose(%v) perm=%p; $_r=ReduceSum($_t #{0|1|2}) keepdims={0|1}; $=Add(x $_r)",
    "$_l=Concat(s #-1) axis=0; $=Reshape(%v $_l)",
};

static void test_layouts(void **state)
{
    static const char *const inputs[] = {
        "x:N,4; s=Shape(x) end=1; k=BitwiseOr(#0 #0); u=Identity(k)",
        "x:N,4; s=Shape(x) end=1; k=BitwiseOr(#1 #0); u=Identity(k)",
        "x:N,4; s=Shape(x) end=1; k=BitwiseOr(#-1 #0); u=Identity(k)",
        "x:N,4; s=Shape(x) end=1; k=BitwiseOr(#4 #0); u=Identity(k)",
        "x:N,4; z:N,T; s=Shape(x) end=1; u=Shape(z) start=1",
        "x:N,4; z:N,T,4; s=Shape(x) end=1; u=Shape(z) start=1 end=2",
    };
    static const family f = {"layouts",
                             TABLE(inputs),
                             {TABLE(numbers), TABLE(regroups), TABLE(regroups)},
                             3,
                             9,
                             6000,
                             100,
                             50};
    family_check(&f, 2);
}

// ---- arithmetic
//
// Shape arithmetic decides by a comparison whether samples stay together. What overflows, is never
// computed, or has a length that no tensor can have, stays in.

#define IN_TYPE(to, ops)                                                                           \
    "$_a=Cast(%i) to=" to "; $_b=Cast(%i) to=" to "; $_c=" ops "($_a $_b); $=Cast($_c) to=7"
#define PAIR   "$_z=Concat(%j %k) axis=0; "
#define VECTOR "$_l=Concat(%i #0) axis=0; $_z=ConstantOfShape($_l); "

static const char *const arithmetic[] = {
    "$={Add|Sub|Mul|Div}(%i %i)",
    "$={Max|Min|Div|Mul}(%i %i)",
    "$=Mod(%i %i) fmod={0|1}",
    "$={Abs|Neg|Relu}(%i)",
    "$_c=Cast(%i) to={6|1|11|9|3|5|12}; $=Cast($_c) to=7",
    IN_TYPE("6", "{Add|Sub|Mul|Div|Max|Min|Mod}"),
    IN_TYPE("1", "{Add|Sub|Mul|Div|Max|Min}"),
    "$_g={Equal|Greater|Less|GreaterOrEqual|LessOrEqual}(%i %i); $=Cast($_g) to=7",
    "$_g={Equal|Greater|Less}(%i %i); $=Where($_g %i %i)",
    "$_z=ConstantOfShape(%i); $=Shape($_z)",
    VECTOR "$=Shape($_z) end=1",
    VECTOR "$_y $_w=Split($_z) axis=0 num_outputs=2; $=Shape($_y) end=1",
    VECTOR "$_y=Slice($_z {#0|#1|%i} %i #0 #{1|-1}); $=Shape($_y) end=1",
    VECTOR "$_p=Concat(%i #0 %i #0) axis=0; $_y=Pad($_z $_p); $=Shape($_y) end=1",
    "$_z=Tile(#f{1|2|3} %i); $=Shape($_z)",
    "$_z=Expand(#f1 %i); $=Shape($_z)",
    "$_z=ConstantOfShape(%i); $_y=Reshape($_z %i); $=Shape($_y) end=1",
    "$_z=ConstantOfShape(%i); $_l=Concat(%i #-1) axis=0; $_y=Reshape($_z $_l); $_h=Shape($_y); "
    "$=Gather($_h #{0|1})",
    "$_z=ConstantOfShape(%i); $_w=ConstantOfShape(%i); $_y=Add($_z $_w); $=Shape($_y)",
    "$_u=Squeeze(%i); $_v=Squeeze(%i); $_z=Range({$_u|#s0} $_v {#s1|#s2}); $=Shape($_z)",
    "$_z=Concat(%i %i) axis=0; $={ReduceProd|ReduceSum|ReduceMax|ReduceMin}($_z #0) keepdims=1",
    "$_l=Concat(%i #3) axis=0; $_z=ConstantOfShape($_l); $_f=Flatten($_z) axis={0|1|2}; "
    "$_h=Shape($_f); $=Gather($_h #{0|1})",
};

// What is nearly always true: a proof that takes it for certain is wrong now and then.
static const char *const claims[] = {
    "g={Equal|Greater|Less|GreaterOrEqual}(%i %i)",
    "g={Equal|Greater|Less|GreaterOrEqual}(%i #{%x|0|1|-1})",
    "$_a=Mul(%j %k); $_b=Div($_a %k); g=Equal($_b %j)",
    "$_a=Mul(%j #%x); $_b=Div($_a #%x); g=Equal($_b %j)",
    "$_a=Add(%j %k); $_b=Sub($_a %k); g=Equal($_b %j)",
    "$_a=Add(%j %k); g=GreaterOrEqual($_a %j)",
    "$_a={Div|Mod|Sub}(%j %j); g=Equal($_a #{0|1})",
    "$_a={Max|Min}(%j #{0|1|-1}); g=Equal($_a {%j|#0|#1|#-1})",
    "$_a={Max|Min}(%j %k); g={Equal|GreaterOrEqual}({%j|%k} $_a)",
    "$_a={Abs|Relu}(%j); g=Equal($_a %j)",
    "$_a={Abs|Relu}(%j); g=Greater($_a #-1)",
    "$_a={Add|Mul}(%j %k); $_b={Abs|Relu}($_a); g=Equal($_b $_a)",
    "$_c=Cast(%j) to={6|1|11|9}; $_a=Cast($_c) to=7; g=Equal($_a %j)",
    "$_z=ConstantOfShape(%j); $_a=Shape($_z); g=Equal($_a %j)",
    "$_m={Mul|Add|Sub}(%j %k); $_z=ConstantOfShape($_m); $_a=Shape($_z); g=Equal($_a $_m)",
    "$_z=ConstantOfShape(%j); $_w=ConstantOfShape(%k); $_y=Add($_z $_w); $_a=Shape($_y); "
    "$_b=Max(%j %k); g=Equal($_a {%j|%k|$_b})",
    "$_l=Concat(%j %k) axis=0; $_z=ConstantOfShape($_l); $_y=Reshape($_z #-1); $_a=Shape($_y); "
    "$_b=Mul(%j %k); g=Equal($_a $_b)",
    "$_m=Mul(%j %k); $_z=ConstantOfShape($_m); $_l=Concat(%j #-1) axis=0; $_y=Reshape($_z $_l); "
    "$_h=Shape($_y); $_a=Gather($_h #{0|1}); g=Equal($_a {%j|%k})",
    "$_z=ConstantOfShape(%j); $_y $_w=Split($_z) axis=0 num_outputs=2; $_a=Shape($_y); "
    "$_b=Mul($_a #2); g=Equal($_b %j)",
    "$_z=ConstantOfShape(%j); $_y=Slice($_z #0 %k #0 #1); $_a=Shape($_y); $_b=Min(%j %k); "
    "g=Equal($_a $_b)",
    "$_z=ConstantOfShape(%j); $_p=Concat(%k #0) axis=0; $_y=Pad($_z $_p); $_a=Shape($_y); "
    "$_b=Add(%j %k); g=Equal($_a $_b)",
    "$_z=Tile(#f{1|2|3} %j); $_a=Shape($_z); $_b=Mul(%j #{1|2|3}); g=Equal($_a $_b)",
    "$_z=Expand(#f1 %j); $_a=Shape($_z); g=Equal($_a %j)",
    "$_u=Squeeze(%j); $_z=Range(#s0 $_u #s1); $_a=Shape($_z); g=Equal($_a %j)",
    PAIR "$_a=Reduce{Sum($_z #0); $_b=Add|Prod($_z #0); $_b=Mul|Max($_z #0); $_b=Max|"
         "Min($_z #0); $_b=Min}(%j %k); g=Equal($_a $_b)",
    "$_a=Neg(%j); $_b=Neg($_a); g=Equal($_b %j)",
    "$_a=Mod(%j %k) fmod={0|1}; g={Less($_a %k)|GreaterOrEqual($_a #0)|Equal($_a %j)}",
    "$_c=Cast(%j) to=9; $_n=Not($_c); $_a=Cast($_n) to=7; g=Equal($_a #{0|1})",
    "$_c=Cast(%j) to=9; $_d=Cast(%k) to=9; $_e={And|Or|Xor}($_c $_d); $_a=Cast($_e) to=7; "
    "g=Equal($_a #{0|1})",
    "$_c=Cast(%j) to=9; $_y=Compress(#5 $_c); $_s=Shape($_y); g=Equal($_s #{0|1})",
    "$_c=Cast(%j) to=6; $_d=Cast(%k) to=6; $_m=Mul($_c $_d); $_b=Div($_m $_d); "
    "$_p=Cast($_b) to=7; $_q=Cast($_c) to=7; g=Equal($_p {$_q|%j})",
    "$_c=Cast(%j) to={1|11}; $_d={Ceil|Floor|Round|Neg|Abs}($_c); $_a=Cast($_d) to=7; "
    "g=Equal($_a %j)",
    "$_l=Concat(#1,1 %j) axis=0; $_z=ConstantOfShape($_l); $_p={MaxPool|AveragePool}($_z) "
    "kernel_shape={1|2|3} strides={1|2} ceil_mode={0|1}; $_s=Shape($_p) start=2; "
    "g={Equal($_s %j)|Greater($_s #0)|GreaterOrEqual($_s %j)}",
    "$_z=ConstantOfShape(%j); $_r=Resize($_z _ {_ %k|#v2|#v1}) mode='nearest'; $_s=Shape($_r); "
    "g=Equal($_s {%j|%k})",
    "$_k=Squeeze(%k); $_h=OneHot(#s1 $_k #v0,1); $_s=Shape($_h); g=Equal($_s %k)",
    // elements that are moved
    PAIR "$_f=Concat($_z #3) axis=0; $_y=Slice($_f #{-1|2|1|0|5|-9} #{-9|0|-1|9|2} #0 #{-1|-2|1}); "
         "$_a=Gather($_y #{0|1|-1}); g=Equal($_a {%j|%k|#3})",
    PAIR "$_f=Concat($_z #3 #5) axis=0; $_m=Reshape($_f #2,2); $_t=Transpose($_m); "
         "$_r=Reshape($_t #-1); $_a=Gather($_r #{0|1|2|3}); g=Equal($_a {%j|%k|#3|#5})",
    PAIR "$_m=Reshape($_z #2,1); $_e={Add|Sub|Max}($_m $_z); $_r=Reshape($_e #-1); "
         "$_a=Gather($_r #{0|1|2|3}); $_b={Add|Sub|Max}(%j %k); g=Equal($_a {$_b|#0|%j})",
    PAIR "$_f=Concat($_z #3) axis=0; $_y $_w=Split($_f) axis=0 num_outputs=2; "
         "$_a=Gather({$_y|$_w} #{0|-1}); g=Equal($_a {%j|%k|#3})",
    "$_l=Concat(%j %k #3) axis=0; $_z=ConstantOfShape($_l); $_s=Shape($_z) start={0|1|-1|-2} "
    "end={1|2|3|-1}; $_a=Gather($_s #{0|-1}); g=Equal($_a {%j|%k|#3})",
};

static void arithmetic_put(sketch *k, const char *text, bool names)
{
    char name[8];
    snprintf(name, sizeof name, "q%d", k->named++);
    idea next;
    write_idea(k, name, text, &next);
    size_t n = strlen(k->text);
    snprintf(k->text + n, sizeof k->text - n, "; %s", next.text);
    if (names) {
        sketch_name(k, name, HTH_DT_I64, &(hth_shape){1, {1}});
    }
}

static void arithmetic_write(sketch *k)
{
    snprintf(k->text, sizeof k->text, "x:N,4; z:N,T; n=Shape(x) end=1; m=Shape(z) start=1");
    sketch_name(k, "n", HTH_DT_I64, &(hth_shape){1, {1}});
    sketch_name(k, "m", HTH_DT_I64, &(hth_shape){1, {1}});
    for (unsigned hidden = 1 + draw(k, 3); hidden > 0; hidden--) {
        arithmetic_put(k, "$_a=BitwiseOr(#{%x|%x|%x|0|0|1|-1|4} #0); $=Identity($_a)", true);
    }
    arithmetic_put(k, "$=Identity(#%x)", draw(k, 2) == 0);
    for (unsigned left = 1 + draw(k, 6); left > 0; left--) {
        arithmetic_put(k, arithmetic[draw(k, sizeof arithmetic / sizeof arithmetic[0])], true);
    }
    arithmetic_put(k, claims[draw(k, sizeof claims / sizeof claims[0])], false);
    arithmetic_put(k, draw(k, 2) == 0 ? THEN_4 : ELSE_4, false);
}

static void test_arithmetic(void **state)
{
    static const int64_t open[] = {1, 2, 3, 4, 256};
    tally t = {.graphs = 0};
    int graphs = (int)environment("HEARTH_TEST_GRAPHS", 20000 / TEST_STRIDE);
    while (t.graphs < graphs) {
        sketch *k = sketch_open(3, (uint64_t)t.graphs);
        arithmetic_write(k);
        hth_graph *g = words_graph(k->text);
        batch b = sketch_batch(g, 5, open[draw(k, sizeof open / sizeof open[0])]);
        check(&t, g, &b, k->text, k->state % 4 == 0);
        batch_free(&b);
        hth_graph_free(g);
        free(k);
    }
    tally_check(&t, "arithmetic", 60, 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operators),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
