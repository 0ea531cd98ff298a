// SPDX-License-Identifier: Apache-2.0
// graph/follow_size.h - integers as functions of the number of samples N: what dimensions and shape
// arithmetic come to without knowing N. Inside graph/follow*.c only.
//
// Design notes
// A size is c * N^k * s1 * s2 * .., with an integer c, k 0 or 1, and symbols s that do not change
// with N: the model's other open dimensions, and results of arithmetic on those. Each is stored
// once, so that equal sizes have equal numbers, and two nodes that compute the same quotient get
// the same symbol. Whatever changes with N in another way (N + 1, N / 2) is HTH_SIZE_OTHER: nothing
// is proven with it. Lack of memory makes a table `failed`, and its results HTH_SIZE_OTHER.
//
// Integers wrap around. Sums and products of sizes are those of the wrapped numbers, too; what is
// not (quotients, comparisons, other types) is only computed of sizes that fit in the type for
// every N and every symbol. int32 holds nothing else (hth_size_int32). The open dimensions of the
// inputs are at least 1 and fit in int32, as N does: other requests share no run.
#ifndef HTH_GRAPH_FOLLOW_SIZE_H
#define HTH_GRAPH_FOLLOW_SIZE_H

#include "graph/op.h"
#include "graph/tensor.h"

#include <stdbool.h>
#include <stdint.h>

typedef int hth_size;            // a row of the table
#define HTH_SIZE_OTHER        0  // changes with the number of samples, nobody knows how
#define HTH_SIZE_SAMPLES_BITS 17 // N is less than 2^17: batch.max is 65536 at most

typedef struct hth_sizes hth_sizes;

hth_sizes *hth_sizes_open(void); // NULL: no memory
void hth_sizes_close(hth_sizes *sizes);
bool hth_sizes_failed(const hth_sizes *sizes); // there was no memory: the results mean nothing

hth_size hth_size_number(hth_sizes *sizes, int64_t n);
hth_size hth_size_samples(hth_sizes *sizes); // N
hth_size hth_size_open(hth_sizes *sizes,
                       int dim);                            // the model's symbolic dimension `dim`
hth_size hth_size_fresh(hth_sizes *sizes, bool at_least_0); // equal to no other
hth_size hth_size_fresh_1(hth_sizes *sizes);                // .. and at least 1
// hth_size_made is the symbol for `how`(a, b): the same for the same arguments. HTH_SIZE_OTHER when
// a or b changes with N. how: an operator, or a number of the caller's above HTH_N_OPS.
hth_size hth_size_made(hth_sizes *sizes, int how, hth_size a, hth_size b, bool at_least_0);

bool hth_size_is(hth_sizes *sizes, hth_size size, int64_t n);
bool hth_size_value(const hth_sizes *sizes, hth_size size, int64_t *n); // true: it is that number
bool hth_size_steady(const hth_sizes *sizes, hth_size size);            // does not change with N
bool hth_size_at_least_0(const hth_sizes *sizes, hth_size size);
bool hth_size_at_least_1(const hth_sizes *sizes, hth_size size);
// hth_size_length is an element as a dimension: `size`, but a symbol where that may be too large
// for 64 bits, since dimensions are numbers that did not wrap around.
hth_size hth_size_length(hth_sizes *sizes, hth_size size);

hth_size hth_size_mul(hth_sizes *sizes, hth_size a, hth_size b);
// hth_size_quotient is a / b where that is a size for every N and every symbol; else
// HTH_SIZE_OTHER.
hth_size hth_size_quotient(hth_sizes *sizes, hth_size a, hth_size b);
// hth_size_quotient_dim is the same of dimensions that the runtime makes sure divide each other, 0
// where b is 0: where N stands in both it cancels, and the rest is a symbol at worst.
hth_size hth_size_quotient_dim(hth_sizes *sizes, hth_size a, hth_size b);
// hth_size_compute is what operator `op` (element-wise, of operands of type `dt`; Mod: the one of
// integers) makes of a and b; of one operand b is a.
hth_size hth_size_compute(hth_sizes *sizes, hth_op op, hth_dtype dt, hth_size a, hth_size b);
// hth_size_int32 is what a conversion to int32 makes of an integer: `size` where it always fits,
// else a symbol.
hth_size hth_size_int32(hth_sizes *sizes, hth_size size);
// hth_size_broadcast is the dimension that a and b broadcast to; neither changes with N.
hth_size hth_size_broadcast(hth_sizes *sizes, hth_size a, hth_size b);

#endif
