// SPDX-License-Identifier: Apache-2.0
// client/cli/axis.h - an axis of a picture: its ends and its ticks, at round numbers.
#ifndef HTH_CLIENT_CLI_AXIS_H
#define HTH_CLIENT_CLI_AXIS_H

#include <stddef.h>

typedef enum hth_axis_kind {
    HTH_AXIS_REAL,  // ticks at 1, 2 or 5 times a power of ten
    HTH_AXIS_WHOLE, // .. that are whole numbers
    HTH_AXIS_BYTES, // at powers of two
} hth_axis_kind;

typedef struct hth_axis {
    double least, most; // its ends, which are ticks
    double first, step; // the ticks are (first + i) * step, first a whole number
    int n;              // ticks, from 2 to 8
    double unit;        // labels count units of so much: of bytes 1, 1024, .., else 1
    const char *name;   // of the unit: "MiB"; "" where it is 1 and not a byte
    int digits;         // of a label: after the point, or below 0 that many significant ones
} hth_axis;

// hth_axis_make makes an axis on which the values from `least` to `most` have a place. Where these
// are (nearly) the same, or not finite, its range is another one that has `least`, if that is
// finite.
void hth_axis_make(hth_axis *out, hth_axis_kind kind, double least, double most);
// hth_axis_share is where a value is, from 0 to 1; what is beyond an end is there.
double hth_axis_share(const hth_axis *axis, double value);
// hth_axis_label writes the number of tick i, without its unit, to out and returns it.
const char *hth_axis_label(const hth_axis *axis, int i, char *out, size_t cap);

#endif
