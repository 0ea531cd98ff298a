// SPDX-License-Identifier: Apache-2.0
// client/cli/svg.h - the frame of a picture of numbers: a title, axes with ticks, lines, a legend.
// It is one image to a reader of screens, and follows its viewer's light or dark colors. What is
// written as text may be what a server said.
#ifndef HTH_CLIENT_CLI_SVG_H
#define HTH_CLIENT_CLI_SVG_H

#include "client/cli/axis.h"

#include <stdio.h>

// The page, in SVG user units.
#define HTH_SVG_WIDTH  640.0
#define HTH_SVG_HEIGHT 400.0

#define HTH_SVG_SERIES 3 // that look different, by color and by dashes; the second is a bound's too

// hth_svg_open begins a picture; `description` says what there is to see to those who do not.
void hth_svg_open(FILE *file, const char *title, const char *description);
void hth_svg_close(FILE *file);
// hth_svg_axes draws both, with what they count (units are added to bytes).
void hth_svg_axes(FILE *file, const hth_axis *x, const char *x_title, const hth_axis *y,
                  const char *y_title);
// Where the shares 0 .. 1 of the axes are: x to the right, y upwards.
double hth_svg_x(double share);
double hth_svg_y(double share);
// hth_svg_line begins the line of a series, hth_svg_point adds a point by its shares,
// hth_svg_line_end ends it. hth_svg_dot draws a point by itself.
void hth_svg_line(FILE *file, int series);
void hth_svg_point(FILE *file, double x, double y);
void hth_svg_line_end(FILE *file);
void hth_svg_dot(FILE *file, int series, double x, double y);
// hth_svg_legend names the n series from the first; nothing for one.
void hth_svg_legend(FILE *file, const char *const *names, int n);
// hth_svg_text writes a line centered at (x, y); `attributes` as they are, and `text`, which may be
// NULL, as text only.
void hth_svg_text(FILE *file, double x, double y, const char *attributes, const char *text);

#endif
