// SPDX-License-Identifier: Apache-2.0
// Rows of the table are products in a normal form (symbols sorted, nothing but 0 for 0), found by
// hashing. A product of more symbols than a row takes gets a symbol for all of them.
#include "graph/follow_size.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define SIZE_SYMBOLS 6
#define SIZE_FRESH   (-1)               // how: equal to no other
#define SIZE_DIM     (-2)               // how: a symbolic dimension
#define SIZE_INT32   (-3)               // how: what int32 has of a
#define SIZE_MEETS   (-4)               // how: the dimension that a and b broadcast to
#define SIZE_EXACT   (-5)               // how: a / b, dimensions that divide each other
#define SIZE_LENGTH  (-6)               // how: an element as a dimension, which is not negative
#define SIZE_REAL    4096               // how: + an operator: of floating-point numbers, by type
#define SIZE_WHOLE   (INT64_C(1) << 24) // whole numbers up to here are exact in single precision

// A size of b bits is less than 2^b, without its sign.
#define SIZE_DIM_BITS    31 // of an input's
#define SIZE_LENGTH_BITS 63 // of others: a tensor without elements may have any
#define SIZE_ANY_BITS    64

typedef struct size_row {
    int64_t factor;
    uint8_t samples, n; // power of N; symbols
    int32_t symbol[SIZE_SYMBOLS];
} size_row;

typedef struct size_symbol {
    int how;
    hth_size a, b;
    bool at_least_0, at_least_1;
    int bits;
} size_symbol;

struct hth_sizes {
    size_row *row;
    int n_rows, cap_rows;
    size_symbol *symbol;
    int n_symbols, cap_symbols;
    int *slot; // rows by hash; then symbols by hash. -1: free
    int n_slots;
    int *symbol_slot;
    int n_symbol_slots;
    bool failed;
};

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t row_hash(const size_row *row)
{
    uint64_t h = mix((uint64_t)row->factor, row->samples);
    for (int i = 0; i < row->n; i++) {
        h = mix(h, (uint64_t)row->symbol[i]);
    }
    return h;
}

static uint64_t symbol_hash(const size_symbol *symbol)
{
    return mix(mix(mix(1, (uint64_t)(int64_t)symbol->how), (uint64_t)symbol->a),
               (uint64_t)symbol->b);
}

static bool row_equal(const size_row *a, const size_row *b)
{
    return a->factor == b->factor && a->samples == b->samples && a->n == b->n &&
           memcmp(a->symbol, b->symbol, a->n * sizeof a->symbol[0]) == 0;
}

// slots_grow doubles a hash table of indices; the caller enters what there is anew.
static bool slots_grow(int **slot, int *n)
{
    int more = *n > 0 ? *n * 2 : 64;
    int *grown = hth_alloc((size_t)more * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    memset(grown, 0xff, (size_t)more * sizeof *grown);
    hth_free(*slot);
    *slot = grown;
    *n = more;
    return true;
}

static void slot_put(int *slot, int n, uint64_t hash, int index)
{
    uint64_t at = hash & (uint64_t)(n - 1);
    while (slot[at] >= 0) {
        at = (at + 1) & (uint64_t)(n - 1);
    }
    slot[at] = index;
}

static hth_size row_intern(hth_sizes *sizes, const size_row *row)
{
    uint64_t hash = row_hash(row);
    for (uint64_t at = hash;; at++) {
        int i = sizes->slot[at & (uint64_t)(sizes->n_slots - 1)];
        if (i < 0) {
            break;
        }
        if (row_equal(&sizes->row[i], row)) {
            return i;
        }
    }
    if (HTH_GROW(sizes->row, sizes->n_rows, sizes->cap_rows) != 0) {
        sizes->failed = true;
        return HTH_SIZE_OTHER;
    }
    sizes->row[sizes->n_rows] = *row;
    if (2 * sizes->n_rows >= sizes->n_slots) {
        if (!slots_grow(&sizes->slot, &sizes->n_slots)) {
            sizes->failed = true;
            return HTH_SIZE_OTHER;
        }
        for (int i = 1; i < sizes->n_rows; i++) {
            slot_put(sizes->slot, sizes->n_slots, row_hash(&sizes->row[i]), i);
        }
    }
    slot_put(sizes->slot, sizes->n_slots, hash, sizes->n_rows);
    return sizes->n_rows++;
}

static hth_size symbol_intern(hth_sizes *sizes, const size_symbol *symbol)
{
    uint64_t hash = symbol_hash(symbol);
    for (uint64_t at = hash;; at++) {
        int i = sizes->symbol_slot[at & (uint64_t)(sizes->n_symbol_slots - 1)];
        if (i < 0) {
            break;
        }
        const size_symbol *o = &sizes->symbol[i];
        if (o->how == symbol->how && o->a == symbol->a && o->b == symbol->b) {
            return row_intern(sizes, &(size_row){.factor = 1, .n = 1, .symbol = {i}});
        }
    }
    if (HTH_GROW(sizes->symbol, sizes->n_symbols, sizes->cap_symbols) != 0) {
        sizes->failed = true;
        return HTH_SIZE_OTHER;
    }
    sizes->symbol[sizes->n_symbols] = *symbol;
    if (2 * sizes->n_symbols >= sizes->n_symbol_slots) {
        if (!slots_grow(&sizes->symbol_slot, &sizes->n_symbol_slots)) {
            sizes->failed = true;
            return HTH_SIZE_OTHER;
        }
        for (int i = 0; i < sizes->n_symbols; i++) {
            slot_put(sizes->symbol_slot, sizes->n_symbol_slots, symbol_hash(&sizes->symbol[i]), i);
        }
    }
    slot_put(sizes->symbol_slot, sizes->n_symbol_slots, hash, sizes->n_symbols);
    return row_intern(sizes, &(size_row){.factor = 1, .n = 1, .symbol = {sizes->n_symbols++}});
}

// ---- how large a size can be

// How many bits a product with n has more than the other factor.
static int factor_bits(int64_t n)
{
    uint64_t more = n < 0 ? -(uint64_t)n : (uint64_t)n;
    return more > 1 ? 64 - __builtin_clzll(more - 1) : 0;
}

// 2^62 itself is not less than 2^62.
static int number_bits(int64_t n)
{
    uint64_t more = n < 0 ? -(uint64_t)n : (uint64_t)n;
    return more > 0 ? 64 - __builtin_clzll(more) : 0;
}

static int size_bits(const hth_sizes *sizes, hth_size size)
{
    const size_row *r = &sizes->row[size];
    if (size == HTH_SIZE_OTHER) {
        return SIZE_ANY_BITS;
    }
    if (r->samples == 0 && r->n == 0) {
        return number_bits(r->factor);
    }
    int bits = factor_bits(r->factor) + (r->samples > 0 ? HTH_SIZE_SAMPLES_BITS : 0);
    for (int i = 0; i < r->n; i++) {
        bits += sizes->symbol[r->symbol[i]].bits;
    }
    return bits;
}

// Is a size itself in 64 bits, whatever N and the symbols are?
static bool size_fits(const hth_sizes *sizes, hth_size size)
{
    const size_row *r = &sizes->row[size];
    bool alone = r->samples == 0 && r->n == 1 && r->factor == 1;
    return size != HTH_SIZE_OTHER && (alone || size_bits(sizes, size) < SIZE_ANY_BITS);
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static int symbol_bits(const hth_sizes *sizes, const size_symbol *symbol)
{
    bool known = size_fits(sizes, symbol->a) && size_fits(sizes, symbol->b);
    int a = known ? size_bits(sizes, symbol->a) : SIZE_ANY_BITS;
    int b = known ? size_bits(sizes, symbol->b) : SIZE_ANY_BITS;
    int bits = SIZE_ANY_BITS;
    switch (symbol->how) {
    case SIZE_INT32:
        return SIZE_DIM_BITS + 1;
    case SIZE_EXACT:
        return a < SIZE_LENGTH_BITS ? a : SIZE_LENGTH_BITS;
    case SIZE_LENGTH:
        return SIZE_LENGTH_BITS;
    case HTH_OP_DIV:
    case HTH_OP_ABS:
    case HTH_OP_RELU:
        bits = a;
        break;
    case HTH_OP_MIN:
    case HTH_OP_MAX:
    case SIZE_MEETS:
        bits = larger(a, b);
        break;
    case HTH_OP_ADD:
    case HTH_OP_SUB:
        bits = larger(a, b) + 1;
        break;
    case HTH_OP_MUL:
        bits = a + b;
        break;
    default:
        break;
    }
    return bits < SIZE_ANY_BITS ? bits : SIZE_ANY_BITS;
}

// Is a size a product of N and one dimension? As that is an input's, a tensor has so many elements.
static bool size_of_input(const hth_sizes *sizes, const size_row *row)
{
    return row->factor == 1 && row->samples == 1 && row->n == 1 &&
           sizes->symbol[row->symbol[0]].how == SIZE_DIM;
}

hth_size hth_size_int32(hth_sizes *sizes, hth_size size)
{
    const size_row *r = &sizes->row[size];
    int64_t n;
    bool fits = size_bits(sizes, size) <= SIZE_DIM_BITS || size_of_input(sizes, r);
    if (hth_size_value(sizes, size, &n)) {
        fits = n >= INT32_MIN && n <= INT32_MAX;
    } else if (r->n == 1 && r->samples == 0 && r->factor == 1) {
        fits = fits || sizes->symbol[r->symbol[0]].how == SIZE_INT32;
    }
    return fits && size != HTH_SIZE_OTHER ? size
                                          : hth_size_made(sizes, SIZE_INT32, size, size, false);
}

hth_sizes *hth_sizes_open(void)
{
    hth_sizes *s = hth_calloc(1, sizeof *s);
    if (s == NULL || HTH_GROW(s->row, s->n_rows, s->cap_rows) != 0 ||
        !slots_grow(&s->slot, &s->n_slots) || !slots_grow(&s->symbol_slot, &s->n_symbol_slots)) {
        hth_sizes_close(s);
        return NULL;
    }
    s->row[s->n_rows++] = (size_row){.factor = 0, .samples = 255}; // HTH_SIZE_OTHER, never found
    return s;
}

void hth_sizes_close(hth_sizes *sizes)
{
    if (sizes != NULL) {
        hth_free(sizes->row);
        hth_free(sizes->symbol);
        hth_free(sizes->slot);
        hth_free(sizes->symbol_slot);
        hth_free(sizes);
    }
}

bool hth_sizes_failed(const hth_sizes *sizes)
{
    return sizes->failed;
}

hth_size hth_size_number(hth_sizes *sizes, int64_t n)
{
    return row_intern(sizes, &(size_row){.factor = n});
}

hth_size hth_size_samples(hth_sizes *sizes)
{
    return row_intern(sizes, &(size_row){.factor = 1, .samples = 1});
}

hth_size hth_size_open(hth_sizes *sizes, int dim)
{
    return symbol_intern(sizes, &(size_symbol){SIZE_DIM, dim, 0, true, true, SIZE_DIM_BITS});
}

hth_size hth_size_fresh(hth_sizes *sizes, bool at_least_0)
{
    size_symbol fresh = {SIZE_FRESH, sizes->n_symbols, 0, at_least_0, false, SIZE_ANY_BITS};
    fresh.bits = at_least_0 ? SIZE_LENGTH_BITS : SIZE_ANY_BITS;
    return symbol_intern(sizes, &fresh);
}

hth_size hth_size_fresh_1(hth_sizes *sizes)
{
    return symbol_intern(
        sizes, &(size_symbol){SIZE_FRESH, sizes->n_symbols, 0, true, true, SIZE_LENGTH_BITS});
}

// Is what a symbol stands for at least 1, as its arguments are?
static bool symbol_at_least_1(hth_sizes *sizes, const size_symbol *symbol)
{
    bool a = hth_size_at_least_1(sizes, symbol->a), b = hth_size_at_least_1(sizes, symbol->b);
    switch (symbol->how) {
    case HTH_OP_ADD:
        return symbol->at_least_0 && (a || b);
    case HTH_OP_MUL:
        return symbol->at_least_0 && a && b;
    case HTH_OP_MAX:
        return a || b;
    case HTH_OP_MIN:
    case SIZE_MEETS:
    case SIZE_EXACT:
        return a && b;
    default:
        return false;
    }
}

hth_size hth_size_made(hth_sizes *sizes, int how, hth_size a, hth_size b, bool at_least_0)
{
    size_symbol made = {how, a, b, at_least_0, false, SIZE_ANY_BITS};
    bool wraps = how == HTH_OP_ADD || how == HTH_OP_MUL || how == HTH_OP_ABS;
    if (!hth_size_steady(sizes, a) || !hth_size_steady(sizes, b)) {
        return HTH_SIZE_OTHER;
    }
    made.bits = symbol_bits(sizes, &made);
    made.at_least_0 = at_least_0 && (!wraps || made.bits < SIZE_ANY_BITS);
    made.at_least_1 = symbol_at_least_1(sizes, &made);
    return symbol_intern(sizes, &made);
}

bool hth_size_value(const hth_sizes *sizes, hth_size size, int64_t *n)
{
    const size_row *r = &sizes->row[size];
    *n = r->factor;
    return size != HTH_SIZE_OTHER && r->samples == 0 && r->n == 0;
}

bool hth_size_is(hth_sizes *sizes, hth_size size, int64_t n)
{
    int64_t have;
    return hth_size_value(sizes, size, &have) && have == n;
}

bool hth_size_steady(const hth_sizes *sizes, hth_size size)
{
    return size != HTH_SIZE_OTHER && sizes->row[size].samples == 0;
}

bool hth_size_at_least_0(const hth_sizes *sizes, hth_size size)
{
    const size_row *r = &sizes->row[size];
    bool yes = size_fits(sizes, size) && r->factor >= 0;
    for (int i = 0; i < r->n; i++) {
        yes = yes && sizes->symbol[r->symbol[i]].at_least_0;
    }
    return yes;
}

bool hth_size_at_least_1(const hth_sizes *sizes, hth_size size)
{
    const size_row *r = &sizes->row[size];
    bool yes = size_fits(sizes, size) && r->factor >= 1;
    for (int i = 0; i < r->n; i++) {
        yes = yes && sizes->symbol[r->symbol[i]].at_least_1;
    }
    return yes;
}

hth_size hth_size_length(hth_sizes *sizes, hth_size size)
{
    return size_fits(sizes, size) ? size : hth_size_made(sizes, SIZE_LENGTH, size, size, true);
}

// hth_size_made of an operator whose arguments may change places: b + a is a + b.
static hth_size made_in_order(hth_sizes *sizes, int how, hth_size a, hth_size b, bool at_least_0)
{
    return a < b ? hth_size_made(sizes, how, a, b, at_least_0)
                 : hth_size_made(sizes, how, b, a, at_least_0);
}

// What a product of too many symbols is stored as: the symbols of both in one of their own.
static hth_size mul_wide(hth_sizes *sizes, size_row a, size_row b)
{
    size_row out = {.samples = a.samples + b.samples, .n = 1};
    if (__builtin_mul_overflow(a.factor, b.factor, &out.factor)) {
        return HTH_SIZE_OTHER;
    }
    a.factor = b.factor = 1;
    a.samples = b.samples = 0;
    hth_size left = row_intern(sizes, &a), right = row_intern(sizes, &b);
    bool positive = hth_size_at_least_0(sizes, left) && hth_size_at_least_0(sizes, right);
    hth_size one = made_in_order(sizes, HTH_OP_MUL, left, right, positive);
    out.symbol[0] = one != HTH_SIZE_OTHER ? sizes->row[one].symbol[0] : 0;
    return one != HTH_SIZE_OTHER ? row_intern(sizes, &out) : HTH_SIZE_OTHER;
}

hth_size hth_size_mul(hth_sizes *sizes, hth_size a, hth_size b)
{
    size_row x = sizes->row[a], y = sizes->row[b], out = {0};
    if (hth_size_is(sizes, a, 0) || hth_size_is(sizes, b, 0)) {
        return hth_size_number(sizes, 0);
    }
    if (a == HTH_SIZE_OTHER || b == HTH_SIZE_OTHER || x.samples + y.samples > 1) {
        return HTH_SIZE_OTHER;
    }
    if (x.n + y.n > SIZE_SYMBOLS) {
        return mul_wide(sizes, x, y);
    }
    out.samples = x.samples + y.samples;
    if (__builtin_mul_overflow(x.factor, y.factor, &out.factor)) {
        return out.samples == 0 ? hth_size_fresh(sizes, false) : HTH_SIZE_OTHER;
    }
    for (int i = 0, k = 0; i < x.n || k < y.n;) {
        bool first = k == y.n || (i < x.n && x.symbol[i] <= y.symbol[k]);
        out.symbol[out.n++] = first ? x.symbol[i++] : y.symbol[k++];
    }
    return row_intern(sizes, &out);
}

hth_size hth_size_quotient(hth_sizes *sizes, hth_size a, hth_size b)
{
    const size_row *x = &sizes->row[a], *y = &sizes->row[b];
    size_row out = {0};
    if (a == HTH_SIZE_OTHER || b == HTH_SIZE_OTHER || y->factor == 0 || x->samples < y->samples ||
        (x->factor == INT64_MIN && y->factor == -1) || x->factor % y->factor != 0) {
        return HTH_SIZE_OTHER;
    }
    int k = 0;
    for (int i = 0; i < x->n; i++) {
        if (k < y->n && y->symbol[k] == x->symbol[i]) {
            k++;
        } else {
            out.symbol[out.n++] = x->symbol[i];
        }
    }
    if (k < y->n) {
        return HTH_SIZE_OTHER;
    }
    out.factor = x->factor / y->factor;
    out.samples = x->samples - y->samples;
    return row_intern(sizes, &out);
}

// Is a product of dimensions, which did not wrap around, at least 1?
static bool size_positive(const hth_sizes *sizes, hth_size size)
{
    const size_row *r = &sizes->row[size];
    bool yes = size != HTH_SIZE_OTHER && r->factor >= 1;
    for (int i = 0; i < r->n; i++) {
        yes = yes && sizes->symbol[r->symbol[i]].at_least_1;
    }
    return yes;
}

hth_size hth_size_quotient_dim(hth_sizes *sizes, hth_size a, hth_size b)
{
    hth_size exact = size_positive(sizes, b) ? hth_size_quotient(sizes, a, b) : HTH_SIZE_OTHER;
    if (exact != HTH_SIZE_OTHER || a == HTH_SIZE_OTHER || b == HTH_SIZE_OTHER ||
        sizes->row[a].samples != sizes->row[b].samples) {
        return exact;
    }
    size_row x = sizes->row[a], y = sizes->row[b];
    x.samples = y.samples = 0;
    hth_size top = row_intern(sizes, &x), bottom = row_intern(sizes, &y);
    return hth_size_made(sizes, SIZE_EXACT, top, bottom, true);
}

// ---- arithmetic

// a + sign * b where both are multiples of one product; HTH_SIZE_OTHER: they are not.
static hth_size add_alike(hth_sizes *sizes, hth_size a, hth_size b, int sign)
{
    size_row x = sizes->row[a], y = sizes->row[b];
    int64_t other;
    size_row like = y;
    like.factor = x.factor;
    if (a == HTH_SIZE_OTHER || b == HTH_SIZE_OTHER || !row_equal(&x, &like) ||
        __builtin_mul_overflow(y.factor, (int64_t)sign, &other) ||
        __builtin_add_overflow(x.factor, other, &x.factor)) {
        return HTH_SIZE_OTHER;
    }
    return x.factor == 0 ? hth_size_number(sizes, 0) : row_intern(sizes, &x);
}

static hth_size compute_sum(hth_sizes *sizes, hth_op op, hth_size a, hth_size b)
{
    bool minus = op == HTH_OP_SUB;
    if (hth_size_is(sizes, b, 0)) {
        return a;
    }
    if (hth_size_is(sizes, a, 0) && !minus) {
        return b;
    }
    hth_size sum = add_alike(sizes, a, b, minus ? -1 : 1);
    bool swap = !minus && a > b;
    bool positive = !minus && hth_size_at_least_0(sizes, a) && hth_size_at_least_0(sizes, b);
    if (sum != HTH_SIZE_OTHER) {
        return sum;
    }
    return swap ? hth_size_made(sizes, op, b, a, positive)
                : hth_size_made(sizes, op, a, b, positive);
}

static hth_size compute_quotient(hth_sizes *sizes, bool real, hth_size a, hth_size b)
{
    int64_t x, y;
    // Of integers, a division by zero gives 0.
    bool divides = hth_size_at_least_1(sizes, b) || hth_size_value(sizes, b, &y);
    hth_size q = divides && size_fits(sizes, a) ? hth_size_quotient(sizes, a, b) : HTH_SIZE_OTHER;
    if (q != HTH_SIZE_OTHER) {
        return q;
    }
    if (!real && hth_size_value(sizes, a, &x) && hth_size_value(sizes, b, &y) && y != 0 &&
        !(x == INT64_MIN && y == -1)) {
        return hth_size_number(sizes, x / y);
    }
    return hth_size_made(sizes, HTH_OP_DIV, a, b,
                         hth_size_at_least_0(sizes, a) && hth_size_at_least_0(sizes, b));
}

static hth_size compute_rest(hth_sizes *sizes, bool real, hth_size a, hth_size b)
{
    int64_t x, y;
    if (!real && hth_size_value(sizes, a, &x) && hth_size_value(sizes, b, &y) && x >= 0 && y > 0) {
        return hth_size_number(sizes, x % y);
    }
    return hth_size_made(sizes, HTH_OP_MOD, a, b, false);
}

static hth_size compute_extreme(hth_sizes *sizes, hth_op op, hth_size a, hth_size b)
{
    int64_t x, y;
    bool max = op == HTH_OP_MAX;
    if (a == b) {
        return a;
    }
    bool first = hth_size_value(sizes, a, &x), second = hth_size_value(sizes, b, &y);
    if (first && second) {
        return hth_size_number(sizes, (x < y) == max ? y : x);
    }
    if (first) {
        return compute_extreme(sizes, op, b, a);
    }
    if (second &&
        ((y <= 0 && hth_size_at_least_0(sizes, a)) || (y <= 1 && hth_size_at_least_1(sizes, a)))) {
        return max ? a : b;
    }
    int bits = size_bits(sizes, a);
    if (second && y > 0 && bits < SIZE_LENGTH_BITS && (INT64_C(1) << bits) - 1 <= y) {
        return max ? b : a; // whatever a is
    }
    bool positive = max ? hth_size_at_least_0(sizes, a) || hth_size_at_least_0(sizes, b)
                        : hth_size_at_least_0(sizes, a) && hth_size_at_least_0(sizes, b);
    return made_in_order(sizes, op, a, b, positive);
}

// 1, 0, or -1: not known.
static int known_equal(hth_sizes *sizes, hth_size a, hth_size b)
{
    int64_t x, y;
    bool first = hth_size_value(sizes, a, &x), second = hth_size_value(sizes, b, &y);
    if (first && second) {
        return x == y;
    }
    if (a == b && a != HTH_SIZE_OTHER) {
        return 1;
    }
    if ((first && x < 0 && hth_size_at_least_0(sizes, b)) ||
        (second && y < 0 && hth_size_at_least_0(sizes, a)) ||
        (first && x < 1 && hth_size_at_least_1(sizes, b)) ||
        (second && y < 1 && hth_size_at_least_1(sizes, a))) {
        return 0;
    }
    return -1;
}

static int known_order(hth_sizes *sizes, hth_op op, hth_size a, hth_size b)
{
    int64_t x, y;
    bool less = op == HTH_OP_LESS || op == HTH_OP_LESS_OR_EQUAL;
    bool equal = op == HTH_OP_LESS_OR_EQUAL || op == HTH_OP_GREATER_OR_EQUAL;
    if (hth_size_value(sizes, a, &x) && hth_size_value(sizes, b, &y)) {
        return x == y ? equal : (x < y) == less;
    }
    if (hth_size_value(sizes, b, &y) && y < 0 && hth_size_at_least_0(sizes, a)) {
        return !less;
    }
    return a == b && a != HTH_SIZE_OTHER ? equal : -1;
}

static int known_logic(hth_sizes *sizes, hth_op op, hth_size a, hth_size b)
{
    int64_t x, y;
    bool first = hth_size_value(sizes, a, &x), second = hth_size_value(sizes, b, &y);
    bool stops = op == HTH_OP_OR; // the value of either that decides
    if (op != HTH_OP_XOR && ((first && (x != 0) == stops) || (second && (y != 0) == stops))) {
        return stops;
    }
    if (!first || !second) {
        return -1;
    }
    return op == HTH_OP_XOR ? (x != 0) != (y != 0) : !stops;
}

static hth_size compute_truth(hth_sizes *sizes, hth_op op, hth_size a, hth_size b)
{
    int known;
    switch (op) {
    case HTH_OP_EQUAL:
        known = known_equal(sizes, a, b);
        break;
    case HTH_OP_AND:
    case HTH_OP_OR:
    case HTH_OP_XOR:
        known = known_logic(sizes, op, a, b);
        break;
    default:
        known = known_order(sizes, op, a, b);
        break;
    }
    return known >= 0 ? hth_size_number(sizes, known) : hth_size_made(sizes, op, a, b, true);
}

static hth_size compute_unary(hth_sizes *sizes, hth_op op, hth_size size)
{
    int64_t x;
    bool number = hth_size_value(sizes, size, &x) && x != INT64_MIN;
    switch (op) {
    case HTH_OP_NEG:
        return hth_size_mul(sizes, size, hth_size_number(sizes, -1));
    case HTH_OP_ABS:
    case HTH_OP_RELU:
        if (hth_size_at_least_0(sizes, size)) {
            return size;
        }
        if (!number) { // the absolute value of INT64_MIN is itself
            bool least = op == HTH_OP_ABS && hth_size_is(sizes, size, INT64_MIN);
            return hth_size_made(sizes, op, size, size, !least);
        }
        return hth_size_number(sizes, op == HTH_OP_ABS ? -x : 0);
    case HTH_OP_NOT:
        return number ? hth_size_number(sizes, x == 0) : hth_size_made(sizes, op, size, size, true);
    case HTH_OP_CEIL:
    case HTH_OP_FLOOR:
    case HTH_OP_ROUND:
        return number ? size
                      : hth_size_made(sizes, op, size, size, hth_size_at_least_0(sizes, size));
    default:
        return hth_size_made(sizes, op, size, size, false);
    }
}

// What floating-point numbers of a type come to, as a symbol.
static hth_size made_real(hth_sizes *sizes, hth_op op, hth_dtype dt, hth_size a, hth_size b)
{
    return hth_size_made(sizes, SIZE_REAL * (1 + (int)dt) + (int)op, a, b, false);
}

// Is a result of whole floating-point numbers exact? Single precision may have rounded what is
// larger, and a zero may have a sign.
static bool real_exact(const hth_sizes *sizes, hth_op op, hth_size result)
{
    int64_t n;
    bool sign = op == HTH_OP_MUL || op == HTH_OP_DIV || op == HTH_OP_NEG;
    return hth_size_value(sizes, result, &n) && n <= SIZE_WHOLE && n >= -SIZE_WHOLE &&
           !(sign && n == 0);
}

hth_size hth_size_compute(hth_sizes *sizes, hth_op op, hth_dtype dt, hth_size a, hth_size b)
{
    int64_t n;
    hth_size out;
    bool real = hth_dtype_is_float(dt);
    // Of floating-point numbers only whole ones are followed: the rest is rounded.
    if (real && !(hth_size_value(sizes, a, &n) && hth_size_value(sizes, b, &n))) {
        return made_real(sizes, op, dt, a, b);
    }
    switch (op) {
    case HTH_OP_ADD:
    case HTH_OP_SUB:
        out = compute_sum(sizes, op, a, b);
        break;
    case HTH_OP_MUL:
        out = hth_size_mul(sizes, a, b);
        break;
    case HTH_OP_DIV:
        out = compute_quotient(sizes, real, a, b);
        break;
    case HTH_OP_MOD:
        out = compute_rest(sizes, real, a, b);
        break;
    case HTH_OP_MAX:
    case HTH_OP_MIN:
        out = compute_extreme(sizes, op, a, b);
        break;
    case HTH_OP_EQUAL:
    case HTH_OP_GREATER:
    case HTH_OP_GREATER_OR_EQUAL:
    case HTH_OP_LESS:
    case HTH_OP_LESS_OR_EQUAL:
    case HTH_OP_AND:
    case HTH_OP_OR:
    case HTH_OP_XOR:
        return compute_truth(sizes, op, a, b);
    default:
        out = hth_op_info_of(op)->min_inputs == 1 ? compute_unary(sizes, op, a)
                                                  : hth_size_made(sizes, op, a, b, false);
    }
    if (real) {
        return real_exact(sizes, op, out) ? out : made_real(sizes, op, dt, a, b);
    }
    return dt == HTH_DT_I32 ? hth_size_int32(sizes, out) : out;
}

hth_size hth_size_broadcast(hth_sizes *sizes, hth_size a, hth_size b)
{
    int64_t n;
    if (a == b || hth_size_is(sizes, b, 1)) {
        return a;
    }
    if (hth_size_is(sizes, a, 1) || hth_size_value(sizes, b, &n)) {
        return b;
    }
    if (hth_size_value(sizes, a, &n)) {
        return a;
    }
    // A minimum of b and something that is at least 1 is b, or 1, where it broadcasts at all.
    for (int i = 0; i < 2; i++) {
        hth_size x = i == 0 ? a : b;
        hth_size y = i == 0 ? b : a;
        const size_row *r = &sizes->row[x];
        bool alone = r->samples == 0 && r->n == 1 && r->factor == 1;
        const size_symbol *m = alone ? &sizes->symbol[r->symbol[0]] : NULL;
        if (m != NULL && m->how == HTH_OP_MIN &&
            ((m->a == y && hth_size_at_least_1(sizes, m->b)) ||
             (m->b == y && hth_size_at_least_1(sizes, m->a)))) {
            return y;
        }
    }
    return made_in_order(sizes, SIZE_MEETS, a, b, true);
}
