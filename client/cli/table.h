// SPDX-License-Identifier: Apache-2.0
// client/cli/table.h - JSON documents for people: objects as `key  value` lines, arrays of objects
// as tables.
#ifndef HTH_CLIENT_CLI_TABLE_H
#define HTH_CLIENT_CLI_TABLE_H

#include <jansson.h>

#include <stdio.h>

// hth_table_print writes `doc`. A key that ends in _bytes (or is "bytes") is written with its unit,
// created_ns and ended_ns, since 1970, as a date, *_us and *_ms with three digits.
void hth_table_print(FILE *file, const json_t *doc);
// hth_table_cell writes one value as hth_table_print does, and hth_table_label what its key is
// called; as much as there is room for.
void hth_table_cell(const char *key, const json_t *value, char *out, size_t cap);
const char *hth_table_label(const char *key);
// hth_table_bytes writes "97.7 MiB" to out and returns it.
const char *hth_table_bytes(double bytes, char *out, size_t cap);

#endif
