// SPDX-License-Identifier: Apache-2.0
// base/word.h - how far a misspelt word is from those that there are, and what other programs call
// the same thing.
#ifndef HTH_BASE_WORD_H
#define HTH_BASE_WORD_H

#include <stdbool.h>

// A word that people bring from elsewhere, and what it is called here.
typedef struct hth_synonym {
    const char *word; // NULL ends a table
    const char *means;
} hth_synonym;

// hth_word_distance is the number of letters to insert, remove, replace or swap (restricted
// Damerau-Levenshtein); of long words the beginning counts.
int hth_word_distance(const char *a, const char *b);
// hth_word_closer takes `candidate` for *best when it is nearer to `word` than *distance, and not
// another word altogether.
void hth_word_closer(const char *word, const char *candidate, int *distance, const char **best);
// hth_word_same compares without case, and '_' and '.' as '-'.
bool hth_word_same(const char *a, const char *b);
// hth_word_means is the meaning of the first row of `table` with `word` whose meaning is one of the
// things there are (`known`; NULL: all are). NULL: there is none.
const char *hth_word_means(const hth_synonym *table, const char *word,
                           bool (*known)(const void *ctx, const char *name), const void *ctx);

#endif
