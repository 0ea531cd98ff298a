// SPDX-License-Identifier: Apache-2.0
// base/word.h - how far a misspelt word is from those that there are.
#ifndef HTH_BASE_WORD_H
#define HTH_BASE_WORD_H

// hth_word_distance is the number of letters to insert, remove, replace or swap (restricted
// Damerau-Levenshtein); of long words the beginning counts.
int hth_word_distance(const char *a, const char *b);
// hth_word_closer takes `candidate` for *best when it is nearer to `word` than *distance, and not
// another word altogether.
void hth_word_closer(const char *word, const char *candidate, int *distance, const char **best);

#endif
