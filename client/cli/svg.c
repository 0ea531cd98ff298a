// SPDX-License-Identifier: Apache-2.0
#include "client/cli/svg.h"

void hth_svg_open(FILE *file)
{
    fprintf(file,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %g %g' font-family='sans-serif' "
            "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n",
            HTH_SVG_WIDTH, HTH_SVG_HEIGHT);
}

void hth_svg_close(FILE *file)
{
    fprintf(file, "</svg>\n");
}

double hth_svg_x(double share)
{
    return HTH_SVG_MARGIN + share * (HTH_SVG_WIDTH - 2 * HTH_SVG_MARGIN);
}

double hth_svg_y(double share)
{
    return HTH_SVG_HEIGHT - HTH_SVG_MARGIN - share * (HTH_SVG_HEIGHT - 2 * HTH_SVG_MARGIN);
}

void hth_svg_rule(FILE *file, double share, const char *value)
{
    double y = hth_svg_y(share);
    fprintf(file,
            "<path d='M%g %gH%g' stroke='#ddd'/><text x='%g' y='%g' "
            "text-anchor='end'>%s</text>\n",
            HTH_SVG_MARGIN, y, HTH_SVG_WIDTH - HTH_SVG_MARGIN, HTH_SVG_MARGIN - 8, y + 4, value);
}

// svg_escaped writes a text that may be a server's as one that a reader of XML takes for a text.
static void svg_escaped(FILE *file, const char *text)
{
    for (const char *p = text != NULL ? text : ""; *p != 0; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '&') {
            fputs("&amp;", file);
        } else if (c == '<') {
            fputs("&lt;", file);
        } else if (c == '>') {
            fputs("&gt;", file);
        } else {
            fputc(c < 0x20 || c == 0x7f ? '?' : c, file);
        }
    }
}

void hth_svg_text(FILE *file, double x, double y, const char *style, const char *text)
{
    fprintf(file, "<text x='%g' y='%g' text-anchor='middle' %s>", x, y, style);
    svg_escaped(file, text);
    fprintf(file, "</text>\n");
}
