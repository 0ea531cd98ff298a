// SPDX-License-Identifier: Apache-2.0
// base/text/numbers.h - numbers as people write them into options and into a model's metadata.
#ifndef HTH_BASE_TEXT_NUMBERS_H
#define HTH_BASE_TEXT_NUMBERS_H

#include <stdbool.h>

// hth_number_of reads a number, or a quotient of two, as in "0.5" and "1/255", with blanks around
// each or not. false: it is neither, or not finite (so is what is divided by 0); *out is then 0.
bool hth_number_of(const char *text, double *out);
// hth_numbers_of reads numbers with commas or blanks between them, and brackets ("[..]" or "(..)")
// around all of them or not; after the last one may be a comma, as Python has it. It returns how
// many there are, and stores the first `most` of them; -1: something is no number, or not finite.
int hth_numbers_of(const char *text, int most, double *list);

#endif
