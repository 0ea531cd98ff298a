// SPDX-License-Identifier: Apache-2.0
// Colors are classes, because only a style sheet can ask whether its reader has it dark.
#include "client/cli/svg.h"

#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

#define SVG_LEFT   84.0
#define SVG_RIGHT  30.0
#define SVG_TOP    40.0
#define SVG_BOTTOM 56.0
#define SVG_LINE   16.0 // of the legend

static const char svg_style[] =
    "<style>\n"
    "text{fill:#1c1917}.paper{fill:#fff}.rule{stroke:#d6d3d1}.on{fill:#1c1917}\n"
    ".s0,.s1,.s2{fill:none;stroke-width:2}.s1{stroke-dasharray:6 4}.s2{stroke-dasharray:2 3}\n"
    ".s0{stroke:#c2410c}.s1{stroke:#1d4ed8}.s2{stroke:#15803d}\n"
    ".d0{fill:#c2410c}.d1{fill:#1d4ed8}.d2{fill:#15803d}\n"
    ".name{paint-order:stroke;stroke:#fff;stroke-width:4}\n"
    "@media(prefers-color-scheme:dark){text{fill:#f5f5f4}.paper{fill:#171513}"
    ".rule{stroke:#4a4541}.on{fill:#1c1917}\n"
    ".s0{stroke:#fb923c}.s1{stroke:#60a5fa}.s2{stroke:#4ade80}\n"
    ".d0{fill:#fb923c}.d1{fill:#60a5fa}.d2{fill:#4ade80}.name{stroke:#171513}}\n"
    "</style>\n";

// svg_escaped writes a text that may be a server's as one that a reader of XML takes for a text.
static void svg_escaped(FILE *file, const char *text)
{
    size_t n = text != NULL ? strlen(text) : 0, bytes;
    uint32_t code;
    for (size_t at = 0; at < n; at += bytes) {
        bytes = hth_utf8_next(text + at, n - at, &code);
        bytes = bytes > 0 ? bytes : n - at; // cut
        if (code == '&') {
            fputs("&amp;", file);
        } else if (code == '<') {
            fputs("&lt;", file);
        } else if (code == '>') {
            fputs("&gt;", file);
        } else if (hth_utf8_obeyed(code) || code == 0xfffe || code == 0xffff) { // XML has none
            fputc('?', file);
        } else {
            fwrite(text + at, 1, bytes, file);
        }
    }
}

void hth_svg_open(FILE *file, const char *title, const char *description)
{
    fprintf(file,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %g %g' role='img' "
            "font-family='sans-serif' font-size='12'>\n<title>",
            HTH_SVG_WIDTH, HTH_SVG_HEIGHT);
    svg_escaped(file, title);
    fputs("</title>\n<desc>", file);
    svg_escaped(file, description);
    fprintf(file, "</desc>\n%s<rect class='paper' width='100%%' height='100%%'/>\n", svg_style);
    hth_svg_text(file, HTH_SVG_WIDTH / 2, 22, "font-size='14' font-weight='bold'", title);
}

void hth_svg_close(FILE *file)
{
    fprintf(file, "</svg>\n");
}

double hth_svg_x(double share)
{
    return SVG_LEFT + share * (HTH_SVG_WIDTH - SVG_LEFT - SVG_RIGHT);
}

double hth_svg_y(double share)
{
    return HTH_SVG_HEIGHT - SVG_BOTTOM - share * (HTH_SVG_HEIGHT - SVG_TOP - SVG_BOTTOM);
}

static void svg_title(char *out, size_t cap, const hth_axis *axis, const char *title)
{
    if (axis->name[0] != 0) {
        snprintf(out, cap, "%s (%s)", title, axis->name);
    } else {
        snprintf(out, cap, "%s", title);
    }
}

void hth_svg_axes(FILE *file, const hth_axis *x, const char *x_title, const hth_axis *y,
                  const char *y_title)
{
    char text[100], turned[60];
    double left = hth_svg_x(0), bottom = hth_svg_y(0), middle = hth_svg_y(0.5);
    for (int i = 0; i < y->n; i++) {
        double at = hth_svg_y((double)i / (y->n - 1));
        fprintf(file,
                "<path class='rule' d='M%g %.1fH%g'/><text x='%g' y='%.1f' "
                "text-anchor='end'>%s</text>\n",
                left, at, hth_svg_x(1), left - 8, at + 4, hth_axis_label(y, i, text, sizeof text));
    }
    for (int i = 0; i < x->n; i++) {
        double at = hth_svg_x((double)i / (x->n - 1));
        fprintf(file, "<path class='rule' d='M%.1f %gv5'/>", at, bottom);
        hth_svg_text(file, at, bottom + 20, "", hth_axis_label(x, i, text, sizeof text));
    }
    svg_title(text, sizeof text, x, x_title);
    hth_svg_text(file, hth_svg_x(0.5), HTH_SVG_HEIGHT - 12, "", text);
    svg_title(text, sizeof text, y, y_title);
    snprintf(turned, sizeof turned, "transform='rotate(-90 16 %g)'", middle);
    hth_svg_text(file, 16, middle, turned, text);
}

void hth_svg_line(FILE *file, int series)
{
    fprintf(file, "<polyline class='s%d' fill='none' points='", series);
}

void hth_svg_point(FILE *file, double x, double y)
{
    fprintf(file, "%.1f,%.1f ", hth_svg_x(x), hth_svg_y(y));
}

void hth_svg_line_end(FILE *file)
{
    fprintf(file, "'/>\n");
}

void hth_svg_dot(FILE *file, int series, double x, double y)
{
    fprintf(file, "<circle class='d%d' cx='%.1f' cy='%.1f' r='3'/>\n", series, hth_svg_x(x),
            hth_svg_y(y));
}

// In the upper right corner, where lines that fall leave room.
void hth_svg_legend(FILE *file, const char *const *names, int n)
{
    double right = hth_svg_x(1) - 8;
    for (int i = 0; n > 1 && i < n; i++) {
        double y = hth_svg_y(1) + SVG_LINE * (i + 1);
        fprintf(file,
                "<path class='s%d' d='M%g %gh-36'/><text class='name' x='%g' y='%g' "
                "text-anchor='end'>",
                i, right, y - 4, right - 42, y);
        svg_escaped(file, names[i]);
        fprintf(file, "</text>\n");
    }
}

void hth_svg_text(FILE *file, double x, double y, const char *attributes, const char *text)
{
    fprintf(file, "<text x='%g' y='%g' text-anchor='middle' %s>", x, y, attributes);
    svg_escaped(file, text);
    fprintf(file, "</text>\n");
}
