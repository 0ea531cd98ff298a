// SPDX-License-Identifier: Apache-2.0
// base/spelling.h - how far a misspelt word is from those that there are, and what other programs
// call the same thing.
#ifndef HTH_BASE_SPELLING_H
#define HTH_BASE_SPELLING_H

#include <stdbool.h>

// A word that people bring from elsewhere, and what it is called here.
typedef struct hth_synonym {
    const char *word; // NULL ends a table
    const char *means;
} hth_synonym;

// hth_spelling_distance is the number of letters to insert, remove, replace or swap (restricted
// Damerau-Levenshtein); of long words the beginning counts.
int hth_spelling_distance(const char *a, const char *b);
// hth_spelling_closer takes `candidate` for *best when it is nearer to `word` than *distance, and
// not another word altogether.
void hth_spelling_closer(const char *word, const char *candidate, int *distance, const char **best);
// hth_spelling_nearest is the one of n words that `word` may mean, less than `far` letters from it.
// -1: none.
int hth_spelling_nearest(const char *word, const char *const *known, int n, int far);
// hth_spelling_same compares without case, and '_' and '.' as '-'.
bool hth_spelling_same(const char *a, const char *b);
// hth_spelling_means is the meaning of the first row of `table` with `word` whose meaning is one of
// the things there are (`known`; NULL: all are). NULL: there is none.
const char *hth_spelling_means(const hth_synonym *table, const char *word,
                               bool (*known)(const void *ctx, const char *name), const void *ctx);

#endif
