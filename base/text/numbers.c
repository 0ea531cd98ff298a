// SPDX-License-Identifier: Apache-2.0
#include "base/text/numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS_BLANKS " \t\r\n"

static const char *numbers_skip(const char *at)
{
    return at + strspn(at, NUMBERS_BLANKS);
}

// numbers_next reads a number and moves *at to what comes after it and its blanks.
static bool numbers_next(const char **at, double *out)
{
    char *end;
    *out = strtod(*at, &end);
    bool is = end != *at && isfinite(*out);
    *at = numbers_skip(end);
    return is;
}

bool hth_number_of(const char *text, double *out)
{
    double a, b = 1;
    *out = 0;
    if (!numbers_next(&text, &a)) {
        return false;
    }
    if (*text == '/') {
        text++;
        if (!numbers_next(&text, &b)) {
            return false;
        }
    }
    if (*text != 0 || !isfinite(a / b)) {
        return false;
    }
    *out = a / b;
    return true;
}

// numbers_close is the bracket that ends the list, if one begins it: else the text's end does.
static char numbers_close(const char **at)
{
    char first = **at;
    *at += first == '[' || first == '(';
    if (first == '[') {
        return ']';
    }
    return first == '(' ? ')' : 0;
}

int hth_numbers_of(const char *text, int most, double *list)
{
    const char *at = numbers_skip(text);
    char close = numbers_close(&at);
    int n = 0;
    for (at = numbers_skip(at); *at != close; n++) {
        double v;
        if (!numbers_next(&at, &v)) {
            return -1;
        }
        if (n < most) {
            list[n] = v;
        }
        bool comma = *at == ',';
        if (!comma && *at != close && strchr(NUMBERS_BLANKS, at[-1]) == NULL) {
            return -1; // "1-2"
        }
        at = numbers_skip(at + comma);
    }
    return close == 0 || *numbers_skip(at + 1) == 0 ? n : -1;
}
