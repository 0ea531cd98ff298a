// SPDX-License-Identifier: Apache-2.0
// client/cli/svg.h - the frame of a picture of numbers: a white page, horizontal rules, labels.
#ifndef HTH_CLIENT_CLI_SVG_H
#define HTH_CLIENT_CLI_SVG_H

#include <stdio.h>

// The page, in SVG user units.
#define HTH_SVG_WIDTH  640.0
#define HTH_SVG_HEIGHT 400.0
#define HTH_SVG_MARGIN 60.0

void hth_svg_open(FILE *file);
void hth_svg_close(FILE *file);
// Where the shares 0 .. 1 of the axes are: x to the right, y upwards.
double hth_svg_x(double share);
double hth_svg_y(double share);
// hth_svg_rule draws a rule at a share of the y axis, `value` next to it.
void hth_svg_rule(FILE *file, double share, const char *value);
// hth_svg_text writes a line centered at (x, y); `style` as it is, and `text`, which may be NULL or
// what a server said, as text only.
void hth_svg_text(FILE *file, double x, double y, const char *style, const char *text);

#endif
