// SPDX-License-Identifier: Apache-2.0
#include "client/cli/numbers.h"

#include "base/alloc.h"
#include "client/npy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS_WORD 64
#define NUMBERS_MOST (1 << 20)

static hth_err numbers_add(json_t *list, const char *from, const char *word)
{
    char *end;
    double v = strtod(word, &end);
    if (end == word || *end != 0 || !isfinite(v)) {
        return hth_fail(HTH_EINVAL, "'%.80s': '%.40s' is not a number", from, word);
    }
    if (json_array_size(list) >= NUMBERS_MOST) {
        return hth_fail(HTH_EINVAL, "'%.80s' has more than %d numbers", from, NUMBERS_MOST);
    }
    return json_array_append_new(list, json_real(v)) == 0 ? HTH_OK
                                                          : hth_no_memory("a list of numbers");
}

static hth_err numbers_text(FILE *file, const char *from, json_t *list)
{
    char word[NUMBERS_WORD];
    size_t n = 0;
    int c;
    do {
        c = fgetc(file);
        bool parts = c == EOF || c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r';
        if (!parts && n + 1 < sizeof word) {
            word[n++] = (char)c;
        } else if (n > 0) {
            word[n] = 0;
            HTH_TRY(numbers_add(list, from, word));
            n = 0;
        }
    } while (c != EOF);
    return HTH_OK;
}

static hth_err numbers_npy(const char *path, json_t *list)
{
    hearth_tensor t;
    HTH_TRY(hth_npy_read(path, &t));
    hth_err err = HTH_OK;
    size_t size = t.dtype == HEARTH_F64 ? sizeof(double) : sizeof(float);
    if (t.dtype != HEARTH_F32 && t.dtype != HEARTH_F64) {
        err = hth_fail(HTH_EINVAL, "'%.80s' does not hold floats", path);
    }
    for (size_t i = 0; err == HTH_OK && i < t.bytes / size; i++) {
        char word[NUMBERS_WORD];
        double v = t.dtype == HEARTH_F64 ? ((const double *)t.data)[i]
                                         : (double)((const float *)t.data)[i];
        snprintf(word, sizeof word, "%.17g", v);
        err = numbers_add(list, path, word);
    }
    hth_free(t.data);
    return err;
}

static hth_err numbers_file(const char *path, json_t *list)
{
    size_t n = strlen(path);
    if (n > 4 && strcmp(path + n - 4, ".npy") == 0) {
        return numbers_npy(path, list);
    }
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return hth_fail(HTH_EIO, "'%.80s' is neither numbers with commas nor a file: %s", path,
                        strerror(errno));
    }
    hth_err err = numbers_text(f, path, list);
    fclose(f);
    if (err == HTH_OK && json_array_size(list) == 0) {
        return hth_fail(HTH_EINVAL, "'%.80s' has no numbers", path);
    }
    return err;
}

hth_err hth_cli_numbers(const char *text, json_t **out)
{
    *out = json_array();
    bool file = text[0] == 0 || text[strspn(text, "0123456789+-.,eE ")] != 0;
    FILE *f = file ? NULL : fmemopen((char *)text, strlen(text), "r");
    hth_err err = f != NULL ? numbers_text(f, text, *out) : numbers_file(text, *out);
    if (f != NULL) {
        fclose(f);
    }
    if (err != HTH_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return err;
}
