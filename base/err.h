// SPDX-License-Identifier: Apache-2.0
// base/err.h - error codes and the one sentence that goes with them.
//
// The folder base/ is the floor: what every other folder includes and what includes none of them.
// Errors, memory, ids, text, files, clocks, threads and their mailboxes, the tables of settings and
// counters, the log. It knows of no model, device or client.
//
// Every fallible function returns hth_err. The code tells the program what to do; the detail, a
// thread-local sentence, tells the user what happened ("node 'conv_17' (Conv): dilation 3 is not
// supported on cpu").
#ifndef HTH_BASE_ERR_H
#define HTH_BASE_ERR_H

typedef enum hth_err {
    HTH_OK = 0,
    HTH_EINVAL,    // the caller's input is wrong
    HTH_ENOENT,    // no such model, version, tensor, file
    HTH_EEXIST,    // already there
    HTH_EBUSY,     // in use; try again later
    HTH_EDENIED,   // not permitted (read-only store, role)
    HTH_ENOMEM,    // out of host memory
    HTH_ENODEVMEM, // does not fit the device now: evict and retry
    HTH_ETOOBIG,   // can never fit (device, limit): do not retry
    HTH_EDEVLOST,  // the device must be reopened
    HTH_ECANCELED, // canceled by its owner
    HTH_ECORRUPT,  // stored or received bytes are not what they claim to be
    HTH_ENOTSUP,   // valid, but not supported here
    HTH_EIO,       // the operating system refused (disk full, connection lost)
    HTH_ETIMEDOUT, // a deadline passed
    HTH_N_ERR
} hth_err;

// hth_strerror returns a constant, lower-case phrase for `err`; never NULL.
const char *hth_strerror(hth_err err);

// hth_fail sets the calling thread's detail sentence (printf style, truncated at 1,023 bytes) and
// returns `err`. It is one line; control characters become '?' (utf8.h).
hth_err hth_fail(hth_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// hth_fail_errno is hth_fail with the operating system's `errnum` translated to a code and appended
// as ": No space left on device".
hth_err hth_fail_errno(int errnum, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// hth_no_memory is hth_fail with HTH_ENOMEM and "out of memory for " in front of what the memory
// was for ("a request", "node 'conv_17'").
hth_err hth_no_memory(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// hth_err_restore sets a detail that was stored with `err` before, maybe by another thread; does
// nothing when `err` is HTH_OK. Returns `err`.
hth_err hth_err_restore(hth_err err, const char *detail);

// hth_err_prefix puts "text: " in front of the calling thread's detail (context added on the way
// up); does nothing when `err` is HTH_OK. Returns `err`.
hth_err hth_err_prefix(hth_err err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// hth_err_json cuts the names of the JSON library's flags off what it says is wrong, which is for
// those who have only the text; returns `why`.
const char *hth_err_json(char *why);

// hth_err_detail returns the calling thread's last detail sentence, or "" if none. Valid until that
// thread's next hth_fail.
const char *hth_err_detail(void);

// HTH_TRY returns from the enclosing function when `x` fails. Only while nothing is held.
#define HTH_TRY(x)                                                                                 \
    do {                                                                                           \
        hth_err hth_try_err_ = (x);                                                                \
        if (hth_try_err_ != HTH_OK) {                                                              \
            return hth_try_err_;                                                                   \
        }                                                                                          \
    } while (0)

// HTH_GOTO assigns `x` to the local `err` and jumps to `label` when it fails.
#define HTH_GOTO(x, label)                                                                         \
    do {                                                                                           \
        err = (x);                                                                                 \
        if (err != HTH_OK) {                                                                       \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#endif
