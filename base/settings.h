// SPDX-License-Identifier: Apache-2.0
// base/settings.h - every limit and tunable of the process, in one table.
//
// The table below is the only place that knows a setting: name, kind, default, range and help. The
// configuration file,
// --set NAME=VALUE, --help and the documents are made from it. Reading is one atomic load, from any
// thread; programs set values before they open engines and stores, and a component may read its own
// only when it is opened.
#ifndef HTH_BASE_SETTINGS_H
#define HTH_BASE_SETTINGS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hth_setting_kind {
    HTH_KIND_COUNT, // whole number
    HTH_KIND_BYTES, // whole number, written with KiB, MiB, GiB, TiB
    HTH_KIND_REAL,
} hth_setting_kind;

#define HTH_KIB 1024.0
#define HTH_MIB (1024.0 * HTH_KIB)
#define HTH_GIB (1024.0 * HTH_MIB)
#define HTH_TIB (1024.0 * HTH_GIB)

// X(identifier, name, kind, default, least, most, help)
#define HTH_SETTINGS(X)                                                                            \
    X(LIMIT_MODEL_BYTES, "limits.model_bytes", BYTES, 64 * HTH_GIB, HTH_KIB, 1024 * HTH_TIB,       \
      "largest model file, external data included, that is imported")                              \
    X(LIMIT_MESSAGE_BYTES, "limits.message_bytes", BYTES, HTH_GIB, 64 * HTH_KIB, HTH_TIB,          \
      "largest request or answer, after decompression")                                            \
    X(LIMIT_RANK, "limits.rank", COUNT, 8, 1, 8, "most dimensions of a tensor")                    \
    X(LIMIT_ELEMENTS, "limits.elements", COUNT, 1099511627776.0, 1, 1125899906842624.0,            \
      "most elements of one tensor")                                                               \
    X(LIMIT_NODES, "limits.nodes", COUNT, 1000000, 1, 100000000, "most operators of a model")      \
    X(QUEUE_LENGTH, "queue.length", COUNT, 1024, 1, 1048576,                                       \
      "requests that may wait for one engine; more are refused as busy")                           \
    X(QUEUE_SPIN_US, "queue.spin_us", COUNT, 100, 0, 10000,                                        \
      "time in microseconds that an idle engine looks for work before it sleeps")                  \
    X(CONVSEL_TOLERANCE, "convsel.tolerance", REAL, 1e-3, 0, 1,                                    \
      "largest relative error, against the direct algorithm, of a convolution algorithm")          \
    X(VECTOR_BYTES, "kernels.vector_bytes", COUNT, 64, 16, 64,                                     \
      "widest vectors that are used, in bytes: 64 AVX-512, 32 AVX2, 16 SSE2; HEARTH_ISA sets it")  \
    X(STORE_INDEX_BYTES, "store.index_bytes", BYTES, HTH_GIB, 64 * HTH_KIB, 64 * HTH_TIB,          \
      "address space reserved at first for a store's index; it grows by itself")                   \
    X(STORE_INLINE_BYTES, "store.inline_bytes", BYTES, 64 * HTH_KIB, 0, HTH_MIB,                   \
      "tensors up to this size are kept in the index instead of a file each")

typedef enum hth_setting {
#define HTH_SETTING_ID(id, name, kind, dflt, least, most, help) HTH_SET_##id,
    HTH_SETTINGS(HTH_SETTING_ID)
#undef HTH_SETTING_ID
        HTH_N_SETTINGS
} hth_setting;

typedef struct hth_setting_info {
    const char *name;
    hth_setting_kind kind;
    double dflt, least, most;
    const char *help;
} hth_setting_info;

// hth_setting_get_info returns row `s` of the table.
const hth_setting_info *hth_setting_get_info(hth_setting s);
int64_t hth_setting_int(hth_setting s); // COUNT and BYTES
double hth_setting_real(hth_setting s); // any kind
// hth_setting_set parses, checks the range, and stores. HTH_ENOENT: no such name; HTH_EINVAL: the
// sentence gives the range; the value stays as it was.
hth_err hth_setting_set(const char *name, const char *value);
// hth_setting_get writes the current value as hth_setting_set reads it ("1GiB").
hth_err hth_setting_get(const char *name, char *out, size_t cap);
void hth_setting_reset(void); // all to their defaults
// hth_setting_format writes `value` as a value of kind `kind` and returns `out`.
const char *hth_setting_format(hth_setting_kind kind, double value, char *out, size_t cap);

// hth_parse_size reads "1048576", "512MiB", "2GiB", "1.5G" (binary units; B and iB may be left out,
// case does not matter) or, when `whole` > 0, "60%" of it. HTH_EINVAL says what is wrong.
hth_err hth_parse_size(const char *text, uint64_t whole, uint64_t *out);

#endif
