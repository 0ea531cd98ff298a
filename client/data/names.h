// SPDX-License-Identifier: Apache-2.0
// client/data/names.h - the names of a model's classes, as metadata and files have them.
#ifndef HTH_CLIENT_DATA_NAMES_H
#define HTH_CLIENT_DATA_NAMES_H

#include "base/err.h"

#include <stddef.h>

typedef struct hth_class_names { // of the classes 0, 1, ..
    char **name;
    int n;
} hth_class_names;

// hth_class_names_parse reads the names that a text has: a list of strings, or a dictionary from
// the numbers 0 to n - 1, in any order, to strings, as JSON or Python writes them (numbers may be
// strings): ["cat", "dog"], {0: 'cat', 1: 'dog'}, {"0": "cat", "1": "dog"}. Any other text has a
// name a line, or without an end of a line, between commas; blanks around names do not count. Names
// are UTF-8. HTH_EINVAL: the text has no names, and the sentence says what is wrong with it;
// HTH_ETOOBIG: more than HTH_CLASS_NAMES. The caller frees *out with hth_class_names_fini; nothing
// is held on an error. Fuzzed.
#define HTH_CLASS_NAMES (1 << 20)
hth_err hth_class_names_parse(const char *text, size_t bytes, hth_class_names *out);
void hth_class_names_fini(hth_class_names *names); // zeroed: nothing happens

#endif
