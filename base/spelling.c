// SPDX-License-Identifier: Apache-2.0
#include "base/spelling.h"

#include <ctype.h>
#include <string.h>

int hth_spelling_distance(const char *a, const char *b)
{
    enum { MOST = 32 };
    int d[MOST + 1][MOST + 1], n = (int)strnlen(a, MOST), m = (int)strnlen(b, MOST);
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
            best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best) {
                best = d[i - 2][j - 2] + 1;
            }
            d[i][j] = best;
        }
    }
    return d[n][m];
}

void hth_spelling_closer(const char *word, const char *candidate, int *distance, const char **best)
{
    int d = hth_spelling_distance(word, candidate);
    if (d < *distance && 2 * d <= (int)strlen(word)) { // of 'foo' and 'job' only the o is one
        *distance = d;
        *best = candidate;
    }
}

static int word_letter(char c)
{
    return c == '_' || c == '.' ? '-' : tolower((unsigned char)c);
}

int hth_spelling_nearest(const char *word, const char *const *known, int n, int far)
{
    int nearest = -1;
    for (int i = 0; i < n; i++) {
        const char *best = NULL;
        hth_spelling_closer(word, known[i], &far, &best);
        nearest = best != NULL ? i : nearest;
    }
    return nearest;
}

bool hth_spelling_same(const char *a, const char *b)
{
    while (*a != '\0' && word_letter(*a) == word_letter(*b)) {
        a++;
        b++;
    }
    return *a == '\0' && *b == '\0';
}

const char *hth_spelling_means(const hth_synonym *table, const char *word,
                               bool (*known)(const void *ctx, const char *name), const void *ctx)
{
    for (; table->word != NULL; table++) {
        if (hth_spelling_same(table->word, word) && (known == NULL || known(ctx, table->means))) {
            return table->means;
        }
    }
    return NULL;
}
